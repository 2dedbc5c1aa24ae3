// Looks up the buyer uids of users through a consumer's lookup port over gRPC, as a bidder does (docs/lookup.md).
// Run it in the parent directory, after the commands at the head of ../main.go up to `go mod tidy`:
//
//	echo alice,bob 17,42 | go run ./lookup 127.0.0.1:9095
//
// Arguments: ADDRESS [TOKEN_FILE [CA_FILE]]. A CA file enables TLS. Each line of the input is one lookup: users and DSP ids. The
// output has a line for each user: the user, and DSP=BUYER_UID for each match.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"read_cookies/cookiesync"
)

// What the auction can wait. The call ends then, with or without a response.
const deadline = 20 * time.Millisecond

// Lookups is used by all goroutines for all auctions.
type Lookups struct {
	client cookiesync.LookupClient
	token  string
}

// open opens the channel, once, and connects before the first auction.
func open(address, tokenFile, caFile string) (lookups Lookups) {
	if tokenFile != "" {
		lookups.token = strings.TrimSpace(string(must(os.ReadFile(tokenFile))))
	}
	security := local.NewCredentials() // without TLS; accepts only loopback addresses
	if caFile != "" {
		security = must(credentials.NewClientTLSFromFile(caFile, ""))
	}
	// After a restart of the consumer, the channel reconnects within a second.
	reconnect := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}}
	channel := must(grpc.Dial(address, grpc.WithTransportCredentials(security), grpc.WithConnectParams(reconnect)))
	lookups.client = cookiesync.NewLookupClient(channel)
	// No user has an empty id, so this lookup does not change the match rates.
	lookups.buyerUIDs([]string{""}, []uint32{1}, 5*time.Second, grpc.WaitForReady(true))
	return lookups
}

// buyerUIDs returns one map for each user, from DSPs to the value of user.buyeruid. An absent DSP gets its bid request without a
// buyer uid.
func (l Lookups) buyerUIDs(users []string, dsps []uint32, timeout time.Duration, options ...grpc.CallOption) []map[uint32]string {
	all := make([]map[uint32]string, len(users))
	call, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if l.token != "" {
		call = metadata.AppendToOutgoingContext(call, "authorization", "Bearer "+l.token)
	}
	response, err := l.client.Get(call, &cookiesync.LookupRequest{UserIds: users, DspIds: dsps}, options...)
	if err != nil {
		// Never wait or retry within an auction: bid without buyer uids, and count the error. Unavailable, ResourceExhausted and
		// DeadlineExceeded end by themselves. Others, such as Unauthenticated, must be repaired.
		log.Printf("no buyer uids: %v: %s", status.Code(err), status.Convert(err).Message())
		return all
	}
	notRead := 0
	for i, found := range response.Users {
		if found.Status == cookiesync.UserMatches_STATUS_NOT_READ {
			notRead++
		}
		all[i] = make(map[uint32]string)
		for _, match := range found.Matches {
			all[i][match.DspId] = match.BuyerUid
		}
	}
	// Not read by the deadline: these users and DSPs may have matches. Bid without them, and cache nothing.
	if notRead > 0 || len(response.UnavailableDsps) > 0 {
		log.Printf("not read: %d users, DSPs %v", notRead, response.UnavailableDsps)
	}
	return all
}

func main() {
	arguments := append(os.Args[1:], "", "")
	lookups := open(arguments[0], arguments[1], arguments[2])
	var users, dsps string
	for _, err := fmt.Scan(&users, &dsps); err == nil; _, err = fmt.Scan(&users, &dsps) {
		var ids []uint32
		for _, dsp := range strings.Split(dsps, ",") {
			ids = append(ids, uint32(must(strconv.ParseUint(dsp, 10, 32))))
		}
		users := strings.Split(users, ",")
		for i, found := range lookups.buyerUIDs(users, ids, deadline) {
			line := users[i]
			for _, dsp := range ids {
				if buyerUID, ok := found[dsp]; ok {
					line += fmt.Sprintf(" %d=%s", dsp, buyerUID)
				}
			}
			fmt.Println(line)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
