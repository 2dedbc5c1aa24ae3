// Queries the limiter before a call to a partner, and reports the partner's response to the limiter.
//
//	go run before_each_call.go http://127.0.0.1:9099 LIMIT COUNTER URL_OF_PARTNER
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Slot is the earliest time for a call.
type Slot struct {
	At      time.Time `json:"at"`
	Wait    float64   `json:"wait"`
	Binding *string   `json:"binding"`
}

// Limiter is one counter of a limiter.
type Limiter struct {
	URL   string // of the limiter, the limit and the counter
	Token string
}

func (l Limiter) post(call string, body, result any) error {
	sent, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, l.URL+"/"+call, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if l.Token != "" {
		request.Header.Set("Authorization", "Bearer "+l.Token)
	}
	client := http.Client{Timeout: time.Minute}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, retry after %s s", call, response.Status, response.Header.Get("Retry-After"))
	}
	return json.NewDecoder(response.Body).Decode(result)
}

// BeforeEachCall waits until the call may be made. It returns an error if the slot is more than a minute ahead.
func (l Limiter) BeforeEachCall() error {
	var slot Slot
	if err := l.post("reserve", map[string]any{"wait": true, "max_wait": 60}, &slot); err != nil {
		return err
	}
	// The limiter delays its response by up to 30 seconds.
	time.Sleep(time.Duration(slot.Wait * float64(time.Second)))
	return nil
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: before_each_call URL_OF_LIMITER LIMIT COUNTER URL_OF_PARTNER")
	}
	counter := os.Args[1] + "/v1/limits/" + url.PathEscape(os.Args[2]) + "/" + url.PathEscape(os.Args[3])
	limiter := Limiter{URL: counter, Token: os.Getenv("LIMITER_TOKEN")}
	if err := limiter.BeforeEachCall(); err != nil {
		log.Fatal(err)
	}
	response, err := http.Get(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	feedback := map[string]any{"status": response.StatusCode}
	for _, header := range []string{
		"Retry-After", "RateLimit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Reset",
	} {
		if values := response.Header.Values(header); len(values) > 0 {
			feedback[strings.ReplaceAll(strings.ToLower(header), "-", "_")] = strings.Join(values, ", ")
		}
	}
	var result any
	if err := limiter.post("feedback", feedback, &result); err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.StatusCode)
}
