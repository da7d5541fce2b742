package main

import (
	"context"
	"fmt"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
)

// sizes measures the costs of a state of some size: memory, and time to start with it.
func (b *bench) sizes(ctx context.Context) error {
	fmt.Printf("\n### Memory and start of one member\n\n")
	fmt.Println(
		"Heap and own memory are after a collection, and own memory again after half a minute of rest; own memory is RSS without the pages of\n" +
			"files (the program, and boltdb's log), which are the kernel's cache. The overhead is what the heap has more than the empty member's, by the\n" +
			"bytes of keys and values. A start is from the process to the first linearizable read, of it in Open.")
	fmt.Println(
		"\n| state | heap | own memory | at rest | pages of files | heap over raw bytes | start from the log | from a snapshot | of it in Open |\n|---|---|---|---|---|---|---|---|---|")
	empty, err := b.size(ctx, 0, 0, 0)
	if err != nil {
		return err
	}
	for _, state := range []struct{ keys, bytes int }{{100_000, 1024}, {100_000, 64}, {b.many, 64}} {
		if _, err := b.size(ctx, state.keys, state.bytes, empty); err != nil {
			return err
		}
	}
	return nil
}

// size prints one row and returns the heap. Its history is short, so that the state counts.
func (b *bench) size(ctx context.Context, keys, bytes int, empty int64) (int64, error) {
	var heap int64
	options := member.Options{Limits: raftstore.Limits{HistoryAge: time.Second}}
	err := b.withGroup(ctx, 1, options, func(g group) error {
		m := g.Members()[0]
		if keys > 0 {
			if err := fill(ctx, m, keys, bytes); err != nil {
				return err
			}
		}
		if err := b.forgetHistory(ctx, g); err != nil {
			return err
		}
		u, err := m.Usage(ctx)
		if err != nil {
			return err
		}
		heap = u.Heap
		select {
		case <-time.After(restFor):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		rested, err := m.AtRest(ctx)
		if err != nil {
			return err
		}
		fromLog, _, err := g.restart(ctx)
		if err != nil {
			return err
		}
		if err := m.Change(ctx, member.Change{Kind: member.Snapshot}); err != nil {
			return err
		}
		fromSnapshot, opened, err := g.restart(ctx)
		if err != nil {
			return err
		}
		over := ""
		if raw := float64(keys) * float64(bytes+len(prefix)+8); raw > 0 {
			over = fmt.Sprintf("%.2f", float64(heap-empty)/raw)
		}
		fmt.Printf("| %d keys of %d B | %s | %s | %s | %s | %s | %s | %s | %s |\n", keys, bytes, mebibytes(heap),
			mebibytes(u.RSS-u.File), mebibytes(rested.RSS-rested.File),
			mebibytes(rested.File), over,
			short(fromLog), short(fromSnapshot), short(opened))
		return nil
	})
	return heap, err
}

// restFor is how long a member rests before it is looked at again.
const restFor = 30 * time.Second

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// forgetHistory drops the history of the fill, so that the state counts.
func (b *bench) forgetHistory(ctx context.Context, g group) error {
	m := g.Members()[0]
	end, err := m.Commit(ctx,
		raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/end", Value: []byte("x")}}})
	if err != nil {
		return err
	}
	return m.Change(ctx, member.Change{Kind: member.Compact, Revision: end.Revision})
}

// restart ends the first member in order and starts it again. It returns how long that took until a
// linearizable read, and how long it was in raftstore.Open.
func (g group) restart(ctx context.Context) (served, opened time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m := g.Members()[0]
	if err := m.Stop(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := m.Start(ctx); err != nil {
		return 0, 0, err
	}
	_, found, _, err := m.Get(ctx, "/end", raftstore.ViewOptions{})
	if err == nil && !found {
		err = fmt.Errorf("a key is missing after the start")
	}
	return time.Since(began), m.Opened(), err
}
