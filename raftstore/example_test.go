package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// A store of one server.
func Example() {
	var network memnet.Network // in memory; between machines it is a raftstore.Mux
	store, err := raftstore.Open(raftstore.Config{Bootstrap: true, InMemory: true, Stream: network.Host("a:6444")})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	written, err := store.Put(context.TODO(), "/greeting", []byte("ahoy"))
	item, _, err2 := store.Get(context.TODO(), "/greeting")
	fmt.Printf("%s, at revision %d, %v\n", item.Value, written.Revision, errors.Join(err, err2))
	// Output: ahoy, at revision 1, <nil>
}

// Three servers in one process. With a raftstore.Mux as the Stream, and a Dir instead of InMemory,
// the same lines run on three machines.
func ExampleOpen() {
	var network memnet.Network
	var servers [3]*raftstore.Server
	for i, addr := range []string{"a:6444", "b:6444", "c:6444"} {
		server, err := raftstore.Open(
			raftstore.Config{ClusterID: "example", Bootstrap: i == 0, InMemory: true, Stream: network.Host(addr)})
		if err == nil {
			err = server.Join(context.TODO(), []string{"a:6444"}) // nothing to do for the first
		}
		if err != nil {
			log.Fatal(err)
		}
		defer server.Close()
		servers[i] = server
	}
	written, err := servers[1].Put(context.TODO(), "/greeting", []byte("ahoy"))
	item, _, err2 := servers[2].Get(context.TODO(), "/greeting")
	fmt.Printf("%s, at revision %d, %v\n", item.Value, written.Revision, errors.Join(err, err2))
	// Output: ahoy, at revision 1, <nil>
}

// A compare-and-set: it takes effect only if no other writer was faster.
func ExampleStore_Commit() {
	store := raftstore.NewInMemory(raftstore.Options{})
	defer store.Close()
	create := raftstore.Txn{
		Require: []raftstore.Precondition{{Key: "/lock", ModRevision: 0}}, // must not exist
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: "/lock", Value: []byte("mine")}},
	}
	for range 2 {
		_, err := store.Commit(context.TODO(), create)
		var conflict *raftstore.ConflictError
		fmt.Println(err == nil, errors.As(err, &conflict))
	}
	// Output:
	// true false
	// false true
}

// Snapshot and subscription in one step: the watcher has all revisions after the view.
func ExampleStore_Watch() {
	ctx := context.TODO()
	store := raftstore.NewInMemory(raftstore.Options{})
	defer store.Close()
	store.Put(ctx, "/fruit/apple", []byte("green"))
	view, err := store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		log.Fatal(err)
	}
	watcher, err := store.Watch(raftstore.WatchOptions{Prefix: "/fruit/", After: view.Revision()})
	if err != nil {
		log.Fatal(err)
	}
	defer watcher.Close()
	store.Put(ctx, "/fruit/apple", []byte("red"))
	batch, err := watcher.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	event := batch.Events[0]
	fmt.Printf("%s was %s and is %s\n", event.Item.Key, event.Prev.Value, event.Item.Value)
	// Output: /fruit/apple was green and is red
}
