package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/status"
)

// slowRaft takes entries and answers them on request.
type slowRaft struct {
	release chan struct{}
	entries []int // how many requests each has
}

type slowFuture struct {
	raft.ApplyFuture
	released <-chan struct{}
	requests int
}

func (r *slowRaft) apply(data []byte) raft.ApplyFuture {
	c, err := command.Decode(data)
	if err != nil {
		panic(err)
	}
	r.entries = append(r.entries, len(c.Requests))
	return &slowFuture{released: r.release, requests: len(c.Requests)}
}

func (f *slowFuture) Error() error { <-f.released; return nil }

func (f *slowFuture) Response() any {
	return &fsm.Response{Outcomes: make([]command.Outcome, f.requests)}
}

// TestWaitingRequestsShareEntries: while some entries are under way nothing else is proposed, and
// the requests that came meanwhile go out in as few entries as hold them.
func TestWaitingRequestsShareEntries(t *testing.T) {
	for what, c := range map[string]struct {
		value, waiting int
		want           []int // requests in each of the entries that follow
	}{
		"in one":    {10, 40, []int{40}},
		"by number": {10, 2*maxEntryRequests + 5, []int{maxEntryRequests, maxEntryRequests, 5}},
		"by bytes":  {maxEntryBytes * 3 / 10, 10, []int{4, 4, 2}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, done := &slowRaft{release: make(chan struct{})}, make(chan struct{})
				p := newProposer(slow.apply, time.Now, c.waiting, done, logstore.NewWatchdog(time.Hour, nil),
					status.NewMetrics(nil))
				var running sync.WaitGroup
				running.Go(p.run)
				answers := make(chan error, maxInFlight+c.waiting)
				ask := func() {
					running.Go(func() {
						_, err := p.propose(t.Context(), &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
							Ops: []kv.Op{{Kind: kv.Put, Key: "/k", Value: make([]byte, c.value)}},
						}})
						answers <- err
					})
				}
				for range maxInFlight {
					ask()
					synctest.Wait()
				}
				if len(slow.entries) != maxInFlight {
					t.Errorf("before the first answer %d entries are under way, want %d", len(slow.entries),
						maxInFlight)
				}
				for range c.waiting {
					ask()
				}
				synctest.Wait()
				if len(slow.entries) != maxInFlight || len(answers) != 0 {
					t.Errorf("%d entries are under way, %d requests answered; want %d and none", len(slow.entries),
						len(answers), maxInFlight)
				}
				close(slow.release)
				synctest.Wait()
				if got := slow.entries[min(maxInFlight, len(slow.entries)):]; !slices.Equal(got, c.want) {
					t.Errorf("%d requests that waited went out in %d entries, the first with %v; want %v",
						c.waiting, len(got), got[:min(len(got), len(c.want))], c.want)
				}
				if len(answers) != cap(answers) {
					t.Errorf("%d of %d requests were answered", len(answers), cap(answers))
				}
				for range len(answers) {
					if err := <-answers; err != nil {
						t.Error(err)
					}
				}
				close(done)
				running.Wait()
			})
		})
	}
}

// TestFullQueue fills the queue while no entry comes back: by number, and by bytes. Requests that
// do not fit are refused at once, as certainly not proposed, and the others are answered when
// entries come back.
func TestFullQueue(t *testing.T) {
	const length = 40
	for what, c := range map[string]struct{ value, fits int }{
		"by number": {10, length},
		"by bytes":  {4 << 20, maxQueueBytes / (4 << 20)},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, done := &slowRaft{release: make(chan struct{})}, make(chan struct{})
				p := newProposer(slow.apply, time.Now, length, done, logstore.NewWatchdog(time.Hour, nil),
					status.NewMetrics(nil))
				var running sync.WaitGroup
				running.Go(p.run)
				ctx, cancel := context.WithCancel(t.Context())
				value := make([]byte, c.value)
				answers := make(chan error, 1000)
				ask := func() {
					running.Go(func() {
						_, err := p.propose(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
							Ops: []kv.Op{{Kind: kv.Put, Key: "/k", Value: value}},
						}})
						answers <- err
					})
					synctest.Wait()
				}
				for range maxInFlight + 1 { // those under way, and the one that waits for its turn
					ask()
				}
				taken := 0
				for len(answers) == 0 {
					ask()
					taken++
				}
				if err := <-answers; !errors.Is(err, kv.ErrOverloaded) || !errors.Is(err, kv.ErrUnavailable) {
					t.Errorf("what does not fit: %v", err)
				}
				if taken--; taken < c.fits-2 || taken > c.fits+2 {
					t.Errorf("%d requests waited, want about %d", taken, c.fits)
				}
				close(slow.release)
				synctest.Wait()
				if n := len(answers); n != taken+maxInFlight+1 {
					t.Errorf("%d of %d requests were answered", n, taken+maxInFlight+1)
				}
				for range len(answers) {
					if err := <-answers; err != nil {
						t.Error(err)
					}
				}
				ask()
				if err := <-answers; err != nil || p.queued.Load() != 0 {
					t.Errorf("afterwards: %v, %d bytes in the queue", err, p.queued.Load())
				}
				cancel()
				close(done)
				running.Wait()
			})
		})
	}
}
