// Reads every cookie of all producers, one line each.
//
//	read_cookies -name my-host producers.example:7676
//
// A name stands for all its addresses, since every producer must be read. -name is the name of the queue that each
// producer keeps: anyone who comes back under it within a minute misses nothing, and may see its last cookies again. Two
// readers must not share one.
//
// The package cookiesync is what protoc makes of cookiesync/v1/cookiesync.proto with its plugins for Go and gRPC; the
// .proto names no Go package, so tell them with --go_opt=M… and --go-grpc_opt=M….
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	cookiesync "read_cookies/cookiesync"
)

// Windows are fixed once they are named: an adaptive one lets some HTTP/2 implementations drop a reader that pauses.
const window = 4 << 20

func main() {
	host, _ := os.Hostname()
	name := flag.String("name", host, "name of the queue")
	flag.Parse()
	var readers sync.WaitGroup
	var output sync.Mutex
	for _, address := range addresses(flag.Args()) {
		readers.Add(1)
		go func(address string) {
			defer readers.Done()
			read(address, *name, func(cookie *cookiesync.Cookie) {
				output.Lock()
				defer output.Unlock()
				// Of two cookies of one user and DSP the one accepted later counts, and that need not be the one that came later.
				accepted := time.Now().Add(-time.Duration(cookie.AgeMicros) * time.Microsecond)
				fmt.Printf("%s\t%d\t%s\t%s\n", cookie.UserId, cookie.DspId, cookie.BuyerUid, accepted.Format(time.RFC3339Nano))
			})
		}(address)
	}
	readers.Wait()
	log.Fatal("no stream is left")
}

// addresses are those of every producer.
func addresses(producers []string) []string {
	var all []string
	for _, producer := range producers {
		host, port, err := net.SplitHostPort(producer)
		if err != nil {
			log.Fatal(err)
		}
		found, err := net.LookupHost(host)
		if err != nil {
			log.Fatal(err)
		}
		for _, address := range found {
			all = append(all, net.JoinHostPort(address, port))
		}
	}
	return all
}

// read hands each cookie of one producer to handle, until that makes no sense any more.
func read(address, name string, handle func(*cookiesync.Cookie)) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	delay := shortest
	for {
		err := stream(address, name, func(cookie *cookiesync.Cookie) {
			handle(cookie)
			delay = shortest
		})
		log.Printf("%s: %v", address, err)
		switch status.Code(err) {
		case codes.Aborted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			return
		}
		// It restarts, or had to cut us off for reading too slowly: come back, but not at once.
		time.Sleep(delay)
		if delay *= 2; delay > longest {
			delay = longest
		}
	}
}

// stream reads one stream to its end, on a connection of its own.
func stream(address, name string, handle func(*cookiesync.Cookie)) error {
	connection, err := grpc.Dial(address,
		grpc.WithInsecure(), // For TLS: grpc.WithTransportCredentials
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	cookies, err := cookiesync.NewCookieStreamerClient(connection).
		GetCookies(context.Background(), &cookiesync.GetCookiesRequest{
			Host:        name,
			UnderstandsAge: true,
		})
	if err != nil {
		return err
	}
	for {
		cookie, err := cookies.Recv()
		if err != nil {
			return err
		}
		handle(cookie)
	}
}
