package member

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/barque/barque/raftstore"
)

// LoadKind is the operation of a load's clients.
type LoadKind string

const (
	// Puts write one key each. The value begins with the time of the call, for watchers.
	Puts LoadKind = "put"
	// Reads get one key each, linearizable.
	Reads LoadKind = "read"
	// StaleReads get one key each from the member's own state.
	StaleReads LoadKind = "stale-read"
	// Lists read all keys under Prefix, linearizable.
	Lists LoadKind = "list"
	// Watches follow Prefix: each client is a watcher, Ops counts events over all of them, and
	// Latency is from the call of the put, by Puts on any member, to the event's delivery.
	Watches LoadKind = "watch"
)

// Load is work that a member does by itself, with its own clients inside its process.
type Load struct {
	Kind       LoadKind
	Clients    int // at once; default 1
	ValueBytes int // of Puts, at least 8
	// Prefix of the keys, and their number: a Put or a Read takes one of Keys by chance. With Keys
	// 0, each Put makes a new key.
	Prefix string
	Keys   int
	// Ops or For end it, whichever comes first; one of them is needed. For Watches, Ops is the
	// number of events over all watchers.
	Ops int
	For time.Duration
	// Each makes Puts write the keys from 0 to Ops-1 once each, instead of any of Keys.
	Each bool
	// Every is the time between the operations of one client, when they are not slower by
	// themselves. Default: none.
	Every time.Duration
	// Timeout of one operation. Default: 10 s.
	Timeout time.Duration
}

// LoadResult is the outcome of a Load.
type LoadResult struct {
	Ops     int           // that succeeded
	Errors  int           // operations that did not
	Error   string        // of one that did not
	Elapsed time.Duration // of the whole load
	Latency Histogram     // of those that succeeded
	// LongestGap is the longest time without a success, from start to end.
	LongestGap time.Duration
	Usage      Usage // CPU: of the load's time; the rest: at its end
}

// Usage is the use of a process.
type Usage struct {
	CPU  time.Duration // user and system
	RSS  int64         // bytes
	File int64         // bytes of RSS that are files' pages, which the kernel takes back when it needs room
	Heap int64         // live bytes of the Go heap; 0 without a collection before
}

func usage() Usage {
	var u Usage
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	if data, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := strings.Fields(string(data)); len(f) > 2 {
			pages, _ := strconv.ParseInt(f[1], 10, 64)
			shared, _ := strconv.ParseInt(f[2], 10, 64) // only files are shared memory here
			u.RSS, u.File = pages*int64(os.Getpagesize()), shared*int64(os.Getpagesize())
		}
	}
	return u
}

func collectedUsage() Usage {
	runtime.GC()
	u := usage()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap = int64(m.HeapAlloc)
	return u
}

type loadClient struct {
	Latency Histogram
	errors  int
	err     error
}

// run runs the load. It ends early, with its counts so far, when ctx ends.
func (l Load) run(ctx context.Context, s *raftstore.Server) (LoadResult, error) {
	if l.Ops <= 0 && l.For <= 0 {
		return LoadResult{}, fmt.Errorf("a load needs an end: Ops or For")
	}
	if l.Timeout <= 0 {
		l.Timeout = 10 * time.Second
	}
	if l.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.For)
		defer cancel()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	clients := make([]loadClient, max(l.Clients, 1))
	var left, last, gap atomic.Int64
	left.Store(int64(l.Ops))
	before, start := usage(), time.Now()
	success := func() {
		now := int64(time.Since(start))
		if silent := now - last.Swap(now); silent > gap.Load() {
			gap.Store(silent) // a race of two loses the shorter of two long gaps at most
		}
	}
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			if l.Kind == Watches {
				l.watch(ctx, stop, s, &clients[i], &left, success)
			} else {
				l.client(ctx, i, s, &clients[i], &left, success)
			}
		})
	}
	working.Wait()
	success()
	r := LoadResult{Elapsed: time.Since(start), LongestGap: time.Duration(gap.Load()), Usage: usage()}
	r.Usage.CPU -= before.CPU
	for i := range clients {
		c := &clients[i]
		r.Ops += int(c.Latency.Total)
		r.Latency.Merge(&c.Latency)
		if r.Errors += c.errors; c.err != nil {
			r.Error = c.err.Error()
		}
	}
	return r, nil
}

func (l Load) client(
	ctx context.Context, number int, s *raftstore.Server, c *loadClient, left *atomic.Int64, success func(),
) {
	rnd := rand.New(rand.NewPCG(uint64(number), uint64(time.Now().UnixNano())))
	value := make([]byte, max(l.ValueBytes, 8))
	for i := 8; i < len(value); i++ {
		value[i] = byte(rnd.Uint32())
	}
	origin := rnd.Uint32()
	var pace <-chan time.Time
	if l.Every > 0 {
		ticker := time.NewTicker(l.Every)
		defer ticker.Stop()
		pace = ticker.C
	}
	for made := 0; ctx.Err() == nil; made++ {
		remaining := int64(0)
		if l.Ops > 0 {
			if remaining = left.Add(-1); remaining < 0 {
				return
			}
		}
		if pace != nil {
			select {
			case <-pace:
			case <-ctx.Done():
				return
			}
		}
		key := fmt.Sprintf("%s%08x-%08d", l.Prefix, origin, made)
		if l.Each {
			key = fmt.Sprintf("%s%08d", l.Prefix, int64(l.Ops)-1-remaining)
		} else if l.Keys > 0 {
			key = fmt.Sprintf("%s%08d", l.Prefix, rnd.IntN(l.Keys))
		}
		start := time.Now()
		if err := l.operate(ctx, s, key, value, start); err != nil {
			if ctx.Err() == nil {
				c.errors, c.err = c.errors+1, err
			}
			continue
		}
		c.Latency.Add(time.Since(start))
		success()
	}
}

func (l Load) operate(ctx context.Context, s *raftstore.Server, key string, value []byte, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	if l.Kind == Puts {
		binary.LittleEndian.PutUint64(value, uint64(now.UnixNano()))
		_, err := s.Commit(ctx, raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: value}}})
		return err
	}
	if l.Kind == StaleReads {
		runtime.Gosched() // they wait for nothing, as goroutines do that serve a network
	}
	v, err := s.View(ctx, raftstore.ViewOptions{Stale: l.Kind == StaleReads})
	if err != nil {
		return err
	}
	switch l.Kind {
	case Reads, StaleReads:
		v.Get(key)
	case Lists:
		v.Ascend(l.Prefix, "", func(raftstore.Item) bool { return true })
	default:
		return fmt.Errorf("there is no load %q", l.Kind)
	}
	return nil
}

func (l Load) watch(
	ctx context.Context, stop func(), s *raftstore.Server, c *loadClient, left *atomic.Int64, success func(),
) {
	w, err := s.Watch(raftstore.WatchOptions{Prefix: l.Prefix})
	if err != nil {
		c.errors, c.err = 1, err
		return
	}
	defer w.Close()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.errors, c.err = 1, err
			}
			return
		}
		now := time.Now().UnixNano()
		for i := range b.Events {
			if v := b.Events[i].Item.Value; len(v) >= 8 {
				c.Latency.Add(time.Duration(now - int64(binary.LittleEndian.Uint64(v))))
			}
			if l.Ops > 0 && left.Add(-1) <= 0 {
				stop()
			}
		}
		success()
	}
}
