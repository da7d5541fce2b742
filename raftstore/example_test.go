package raftstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// Three servers in one process. With a raftstore.Mux as the Stream, and a Dir instead of InMemory,
// the same lines run on three machines.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var network memnet.Network
	var servers []*raftstore.Server
	for _, addr := range []string{"a:6444", "b:6444", "c:6444"} {
		server, err := raftstore.Open(raftstore.Config{
			InMemory: true, Stream: network.Host(addr), ClusterID: "example", Bootstrap: len(servers) == 0,
		})
		if err != nil {
			log.Fatal(err)
		}
		defer server.Close()
		if err := server.Join(ctx, []string{"a:6444"}); err != nil { // nothing to do for the first
			log.Fatal(err)
		}
		servers = append(servers, server)
	}

	result, err := servers[1].Commit(ctx, raftstore.Txn{
		Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/greeting", Value: []byte("ahoy")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	view, err := servers[2].View(ctx, raftstore.ViewOptions{})
	if err != nil {
		log.Fatal(err)
	}
	item, _ := view.Get("/greeting")
	fmt.Printf("%s, at revision %d\n", item.Value, result.Revision)
	// Output: ahoy, at revision 1
}
