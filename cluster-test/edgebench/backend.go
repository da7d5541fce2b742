package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// serveBackend is the first argument of the child that is the backend; the second is its address.
const serveBackend = "serve-backend"

var errNotAsked = errors.New("not asked to serve")

// serveIfAsked is the backend of all proxies until the context ends: plain HTTP/1.1, and a body of
// the same bytes for each request.
func serveIfAsked(ctx context.Context, args []string) error {
	if len(args) != 2 || args[0] != serveBackend {
		return errNotAsked
	}
	listener, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	body := make([]byte, bodyLength)
	for i := range body {
		body[i] = 'a' + byte(i%26)
	}
	length := strconv.Itoa(bodyLength)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", length)
			_, _ = w.Write(body) // the client may be gone
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // ends with Close
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = server.Close()
	<-ended
	return nil
}
