package raftstore_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func TestInMemoryConformance(t *testing.T) {
	storetest.Conformance(t, synctest.Test, func(t *testing.T) *raftstore.Store {
		s := raftstore.NewInMemory(raftstore.Options{})
		t.Cleanup(func() { s.Close() })
		return s
	})
}

func ExampleNewInMemory() {
	ctx := context.Background()
	store := raftstore.NewInMemory(raftstore.Options{})
	defer store.Close()

	watcher, err := store.Watch(raftstore.WatchOptions{Prefix: "/fruit/"})
	if err != nil {
		log.Fatal(err)
	}
	defer watcher.Close()
	_, err = store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: "/fruit/apple", ModRevision: 0}}, // must not exist
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: "/fruit/apple", Value: []byte("red")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	batch, err := watcher.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	view, err := store.View(ctx, raftstore.ViewOptions{Revision: batch.Revision})
	if err != nil {
		log.Fatal(err)
	}
	item, _ := view.Get("/fruit/apple")
	fmt.Printf("%s is %s since revision %d\n", item.Key, item.Value, item.CreateRevision)
	// Output: /fruit/apple is red since revision 1
}
