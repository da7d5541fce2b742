package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
)

// Options of a run. Zero values mean the defaults.
type Options struct {
	Seed     uint64
	Servers  int           // 3 or 5; default: as the seed decides
	Leaders  int           // how many terms with a leader there are to be; default 40, or 120 in a brisk run
	Limit    time.Duration // of virtual time, for the faults; default 5 minutes
	Clients  int           // default 4
	Pace     time.Duration // how long a client waits on average; default 80 ms
	Brisk    bool          // only faults that make leaders change, and fast; default: as the seed decides
	Exchange bool          // servers are removed, wiped, and join again, all the time; default: as the seed decides
	Calm     bool          // no faults, no drift, no exchange of servers

	// For tests of the checks: a change of a server before it starts, and a replacement of it
	// for clients.
	only  []string // names of faults
	edit  func(s *server, m *mount, cfg *raftstore.Config)
	spoil func(*raftstore.Server) api
}

func (o Options) withDefaults() Options {
	if o.Servers == 0 {
		o.Servers = 3
		if o.Seed%3 == 0 {
			o.Servers = 5
		}
	}
	if !o.Calm && o.only == nil { // both, one, or none
		o.Brisk = o.Brisk || o.Seed%2 == 0
		o.Exchange = o.Exchange || o.Seed%4 < 2
	}
	if o.Leaders == 0 {
		o.Leaders = 40
		if o.Brisk {
			o.Leaders = 120
		}
	}
	if o.Limit == 0 {
		o.Limit = 5 * time.Minute
	}
	if o.Clients == 0 {
		o.Clients = 4
	}
	if o.Pace == 0 {
		o.Pace = 80 * time.Millisecond
	}
	return o
}

// Result of a run.
type Result struct {
	Record    *check.Record
	Clocks    check.Clocks
	Simulated time.Duration
	Stormy    time.Duration       // the part of it in which faults came
	Faults    int                 // how many there were
	Problems  []history.Violation // of servers; the clients' answers are in the Record
}

// recovery is how long, after all harm was taken back, the cluster may take until it is as it
// should be.
const recovery = 60 * time.Second

// Run runs a cluster. It must be called in a synctest bubble, and leaves no goroutine behind.
func Run(opts Options) Result {
	opts = opts.withDefaults()
	record := check.NewRecord()
	start := time.Now()
	c := newCluster(opts, record)
	c.found()

	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	var watchers []*watcher
	var stormy time.Duration
	for i := range opts.Clients {
		clients.Go(func() { c.newClient(i).run(ctx) })
		w := &watcher{client: c.newClient(100 + i)}
		watchers = append(watchers, w)
		clients.Go(func() { w.run(ctx) })
	}
	if opts.Calm {
		sleep(opts.Limit)
	} else {
		exchange, end := context.WithCancel(ctx)
		if opts.Exchange {
			clients.Go(func() { c.exchange(exchange) })
		}
		began := time.Now()
		c.storm(began.Add(opts.Limit))
		stormy = time.Since(began)
		end()
		c.heal()
	}
	stop()
	clients.Wait()
	c.settle(watchers)
	c.dying.Wait() // no server is started any more
	for _, s := range c.servers {
		s.stop()
	}
	return Result{Record: record, Clocks: c.clocks(start), Simulated: time.Since(start), Stormy: stormy,
		Faults: c.faults, Problems: c.problems}
}

// found makes the cluster.
func (c *cluster) found() {
	ctx, cancel := limited(context.Background(), recovery)
	defer cancel()
	for i, s := range c.servers {
		s.start()
		if i > 0 {
			c.join(ctx, s)
		}
	}
	if !c.complete(ctx) {
		c.problem("a cluster comes about", "not all servers got their vote in %v%s", recovery, c.look())
	}
}

// settle waits until the cluster is as it should be, and looks whether it is.
func (c *cluster) settle(watchers []*watcher) {
	ctx, cancel := limited(context.Background(), recovery)
	defer cancel()
	if !c.complete(ctx) {
		c.problem("the cluster recovers", "not all servers vote %v after all harm was taken back%s", recovery, c.look())
		return
	}
	for i, s := range c.servers {
		cl := c.newClient(200 + i)
		p := s.live()
		err := context.Cause(ctx)
		for try := 0; try < 20 && p != nil; try++ {
			w := check.Write{Client: cl.id, Server: s.index, Call: c.record.Now(), Txn: raftstore.Txn{
				Ops: []raftstore.Op{
					{Kind: raftstore.Put, Key: "/end", Value: fmt.Appendf(nil, "v%d", c.values.next())}},
			}}
			var result raftstore.Result
			result, err = p.Commit(ctx, w.Txn)
			if c.record.Write(w, result, err); err == nil {
				break
			}
		}
		if err != nil || p == nil {
			c.problem("the cluster recovers", "server %d takes no write: %v", s.index, err)
			return
		}
	}
	// Keys expire, and states are compared. A deadline that the fastest clock gave may be judged by
	// the slowest.
	apart := 2*maxOffset + time.Duration(2*maxDrift*float64(c.record.Now()))
	sleep(maxTTL + apart + 10*time.Second)
	c.compare(ctx)
	for _, w := range watchers {
		if w.at != 0 {
			w.finish(c.servers[0].live().Revision())
		}
	}
	// At the end, reads show the state of the history.
	for i, s := range c.servers {
		c.newClient(400+i).read(ctx, s, s.live(), check.Linearizable)
	}
}

// compare checks that all servers are the same.
func (c *cluster) compare(ctx context.Context) {
	var text string
	for ctx.Err() == nil {
		text = ""
		equal := true
		var first raftstore.Status
		for i, s := range c.servers {
			status := s.live().Status()
			text += fmt.Sprintf(" server %d: revision %d, hash %s;", i, status.Revision, status.StateHash)
			if i == 0 {
				first = status
			}
			equal = equal && status.Revision == first.Revision && status.StateHash == first.StateHash
			if status.Quarantined != "" || status.Undecided != "" {
				c.problem(history.OneHistory, "server %d: %s%s", i, status.Quarantined, status.Undecided)
				return
			}
		}
		if equal {
			c.expired()
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
	c.problem(history.OneHistory, "the states are not equal:%s", text)
}

// expired checks that all keys are gone that should have expired long ago.
func (c *cluster) expired() {
	v, err := c.servers[0].live().View(context.Background(), raftstore.ViewOptions{Stale: true})
	if err != nil {
		c.problem("the cluster recovers", "a stale read: %v", err)
		return
	}
	v.Ascend("/t/", "", func(item raftstore.Item) bool {
		if item.Expires != 0 {
			c.problem("expiry", "%s is still there", item.Key)
		}
		return true
	})
}
