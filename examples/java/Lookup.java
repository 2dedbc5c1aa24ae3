import cookiesync.v1.Cookiesync.*;
import cookiesync.v1.LookupGrpc;
import io.grpc.*;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Looks up the buyer uids of users through a consumer's lookup port over gRPC, as a bidder does (docs/lookup.md).
 *
 * <pre>
 * apt install default-jdk-headless libgeronimo-annotation-1.3-spec-java libgrpc-java libguava-java libnetty-java \
 *     libperfmark-java libprotobuf-java protobuf-compiler protobuf-compiler-grpc-java-plugin
 * mkdir generated
 * protoc -I ../../proto --plugin=protoc-gen-grpc=/usr/bin/grpc_java_plugin --java_out=generated --grpc_out=generated \
 *     cookiesync/v1/cookiesync.proto
 * javac -cp '/usr/share/java/*' -d classes Lookup.java generated/cookiesync/v1/*.java
 * echo alice,bob 17,42 | java -cp 'classes:/usr/share/java/*' Lookup 127.0.0.1:9095
 * </pre>
 *
 * Arguments: ADDRESS [TOKEN_FILE]. Each line of the input is one lookup: users and DSP ids. The output has a line for each user: the
 * user, and DSP=BUYER_UID for each match. With Maven, use the artifacts grpc-netty-shaded, grpc-protobuf and grpc-stub instead of
 * Debian's packages.
 */
public final class Lookup {
    /** What the auction can wait. The call ends then, with or without a response. */
    private static final long DEADLINE_MILLIS = 20;

    /** Used by all threads for all auctions. */
    private final LookupGrpc.LookupBlockingStub stub;

    private Lookup(Channel channel, String token) {
        Metadata headers = new Metadata();
        if (token != null) {
            headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
        }
        stub = LookupGrpc.newBlockingStub(channel).withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }

    /** Connects and loads classes before the first auction. No user has an empty id, so this lookup does not change the match rates. */
    private void warmUp() {
        buyerUids(stub.withWaitForReady().withDeadlineAfter(5, TimeUnit.SECONDS), List.of(""), List.of(1));
    }

    /** One map for each user, from DSPs to the value of user.buyeruid. An absent DSP gets its bid request without a buyer uid. */
    private List<Map<Integer, String>> buyerUids(List<String> users, List<Integer> dsps) {
        return buyerUids(stub.withDeadlineAfter(DEADLINE_MILLIS, TimeUnit.MILLISECONDS), users, dsps);
    }

    private static List<Map<Integer, String>> buyerUids(LookupGrpc.LookupBlockingStub stub, List<String> users, List<Integer> dsps) {
        LookupResponse response;
        try {
            response = stub.get(LookupRequest.newBuilder().addAllUserIds(users).addAllDspIds(dsps).build());
        } catch (StatusRuntimeException error) {
            // Never wait or retry within an auction: bid without buyer uids, and count the error. UNAVAILABLE, RESOURCE_EXHAUSTED and
            // DEADLINE_EXCEEDED end by themselves. Others, such as UNAUTHENTICATED, must be repaired.
            System.err.println("no buyer uids: " + error.getMessage());
            return Collections.nCopies(users.size(), Map.of());
        }
        // Not read by the deadline: these users and DSPs may have matches. Bid without them, and cache nothing.
        long notRead = response.getUsersList().stream().filter(it -> it.getStatus() == UserMatches.Status.STATUS_NOT_READ).count();
        if (notRead > 0 || response.getUnavailableDspsCount() > 0) {
            System.err.println("not read: " + notRead + " users, DSPs " + response.getUnavailableDspsList());
        }
        Stream<Map<Integer, String>> matches = response.getUsersList().stream()
                .map(user -> user.getMatchesList().stream().collect(Collectors.toMap(Match::getDspId, Match::getBuyerUid)));
        return matches.collect(Collectors.toList());
    }

    /** Arguments: ADDRESS [TOKEN_FILE]. */
    public static void main(String[] args) throws IOException {
        // Opened once. With TLS: TlsChannelCredentials, which needs grpc-netty-shaded, because Debian's netty lacks ALPN.
        ManagedChannel channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
        // After a restart of the consumer, the channel reconnects within a second.
        Executors.newSingleThreadScheduledExecutor().scheduleAtFixedRate(channel::resetConnectBackoff, 1, 1, TimeUnit.SECONDS);
        Lookup lookups = new Lookup(channel, args.length < 2 ? null : Files.readString(Path.of(args[1])).trim());
        lookups.warmUp();
        for (Scanner input = new Scanner(System.in); input.hasNext(); ) {
            List<String> users = List.of(input.next().split(","));
            List<Integer> dsps = Stream.of(input.next().split(",")).map(Integer::parseUnsignedInt).collect(Collectors.toList());
            List<Map<Integer, String>> found = lookups.buyerUids(users, dsps);
            for (int i = 0; i < users.size(); i++) {
                StringBuilder line = new StringBuilder(users.get(i));
                new TreeMap<>(found.get(i)).forEach((dsp, buyerUid) -> line.append(" " + dsp + "=" + buyerUid));
                System.out.println(line);
            }
        }
        System.exit(0);
    }
}
