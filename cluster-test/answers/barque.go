package main

import (
	"context"
	"net"

	"github.com/barque/barque/cluster-test/lone"
)

// startBarque starts Barque's API server in this process, over a store in memory.
func startBarque(ctx context.Context, work string) (*server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s, err := lone.Start(ctx, work, token, ln)
	if err != nil {
		return nil, err
	}
	return &server{name: "Barque", url: s.URL, client: s.HTTP, stop: s.Stop}, nil
}
