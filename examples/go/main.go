// Reads every cookie of all producers, and prints one line for each.
//
//	export PATH="$PATH:$(go env GOPATH)/bin"
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.33.0
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.3.0
//	go generate && go mod tidy && go run . -name my-host producers.example:7676
//
// It connects to every address of a DNS name. -name is the subscriber's name. A reader that reconnects with its name
// within a minute loses nothing, unless the producer has restarted. It may receive its last cookies twice. Two readers
// must not use the same name.
package main

//go:generate protoc -I ../../proto --go_out=. --go_opt=module=read_cookies --go_opt=Mcookiesync/v1/cookiesync.proto=read_cookies/cookiesync --go-grpc_out=. --go-grpc_opt=module=read_cookies --go-grpc_opt=Mcookiesync/v1/cookiesync.proto=read_cookies/cookiesync cookiesync/v1/cookiesync.proto

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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"read_cookies/cookiesync"
)

// A fixed flow-control window. With adaptive windows, some HTTP/2 implementations drop the connection of a reader that
// pauses.
const window = 4 << 20

func main() {
	host, _ := os.Hostname()
	name := flag.String("name", host, "subscriber name")
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
				// Of two cookies of one user and DSP, the cookie accepted later is valid, even if it arrives first.
				accepted := time.Now().Add(-time.Duration(cookie.AgeMicros) * time.Microsecond)
				fmt.Printf("%s\t%d\t%s\t%s\n", cookie.UserId, cookie.DspId, cookie.BuyerUid, accepted.Format(time.RFC3339Nano))
			})
		}(address)
	}
	readers.Wait()
	log.Fatal("all streams have ended")
}

// addresses returns the addresses of all producers.
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

// read passes each cookie of one producer to handle, and reconnects until an error is permanent.
func read(address, name string, handle func(*cookiesync.Cookie)) {
	const minDelay, maxDelay = 100 * time.Millisecond, 5 * time.Second
	delay := minDelay
	for {
		err := stream(address, name, func(cookie *cookiesync.Cookie) {
			handle(cookie)
			delay = minDelay
		})
		log.Printf("%s: %v", address, err)
		switch status.Code(err) {
		case codes.Aborted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			return
		}
		// The producer restarts, or disconnected this reader because it was too slow.
		time.Sleep(delay)
		if delay *= 2; delay > maxDelay {
			delay = maxDelay
		}
	}
}

// stream reads one stream to its end, on its own connection.
func stream(address, name string, handle func(*cookiesync.Cookie)) error {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // with TLS: credentials.NewTLS
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	cookies, err := cookiesync.NewCookieStreamerClient(connection).
		GetCookies(context.Background(), &cookiesync.GetCookiesRequest{Host: name, SupportsAge: true})
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
