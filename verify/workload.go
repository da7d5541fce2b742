package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// Config of a workload.
type Config struct {
	Servers   []Server
	Namespace string // exists; others may use it if they leave the run's ConfigMaps alone
	Run       string // a label's value and part of names, unique in the namespace
	Seed      uint64 // of the clients' choices
	Clients   int    // of each server; 0: 2
	Objects   int    // shared by the clients; 0: 4
	// Pause is how long a client waits between two calls, on average; 0: 25 ms.
	Pause time.Duration
	// CallTimeout bounds a call; 0: 2 s.
	CallTimeout time.Duration
	// Observe receives each write that has returned. It may be nil, and is called from many
	// goroutines.
	Observe func(server string, begin, end time.Time, ok bool)
}

// Workload reads, writes and watches through all servers until it is stopped.
type Workload struct {
	cfg    Config
	start  time.Time
	record *Record

	stopClients, stopWatchers context.CancelFunc
	clients, watchers         sync.WaitGroup
	watches                   []*Watch // one for each server, in their order
	moving                    *Watch   // a watcher that goes from server to server

	begin sync.Once
	begun chan struct{} // closed at the first watch
}

// Start begins a workload. Stop must be called.
func Start(ctx context.Context, cfg Config) (*Workload, error) {
	if len(cfg.Servers) == 0 {
		return nil, errors.New("a workload needs a server")
	}
	cfg.Clients, cfg.Objects = cmp.Or(cfg.Clients, 2), cmp.Or(cfg.Objects, 4)
	cfg.Pause, cfg.CallTimeout = cmp.Or(cfg.Pause, 25*time.Millisecond), cmp.Or(cfg.CallTimeout, 2*time.Second)
	w := &Workload{cfg: cfg, start: time.Now(), begun: make(chan struct{})}
	w.record = NewRecord(w.start)
	watching, stopWatchers := context.WithCancel(context.WithoutCancel(ctx))
	working, stopClients := context.WithCancel(ctx)
	w.stopWatchers, w.stopClients = stopWatchers, stopClients
	for i, s := range cfg.Servers {
		w.watches = append(w.watches, w.follow(watching, "on "+s.Name, i, func() Server { return s }))
		for n := range cfg.Clients {
			c := w.client(fmt.Sprintf("%s-%d", s.Name, n), uint64(i*cfg.Clients+n), s)
			w.clients.Go(func() { c.run(working) })
		}
	}
	turn := 0
	w.moving = w.follow(watching, "that moves", len(cfg.Servers), func() Server {
		turn++
		return cfg.Servers[turn%len(cfg.Servers)]
	})
	return w, nil
}

func (w *Workload) objects(s Server) objectClient { return objectClient{s, w.cfg.Namespace, w.cfg.Run} }

// call makes one call and records it.
func (w *Workload) call(ctx context.Context, s Server, client string, c *Call) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	c.Client, c.Begin = client, begin.Sub(w.start)
	w.objects(s).do(ctx, c)
	end := time.Now()
	c.End = end.Sub(w.start)
	w.record.Add(*c)
	if w.cfg.Observe != nil && c.Token != "" && c.Outcome != Exists && c.Outcome != Conflict && c.Outcome != Absent {
		w.cfg.Observe(s.Name, begin, end, c.Outcome == Done)
	}
}

// client makes one call at a time.
type client struct {
	*Workload
	name   string
	server Server
	rnd    *rand.Rand
	writes int
	known  map[string]uint64 // revisions from answers; 0: the object does not exist
}

func (w *Workload) client(name string, number uint64, s Server) *client {
	return &client{Workload: w, name: name, server: s, rnd: rand.New(rand.NewPCG(w.cfg.Seed, number)),
		known: make(map[string]uint64)}
}

func (c *client) run(ctx context.Context) {
	// A change before the first watch cannot be judged.
	select {
	case <-c.begun:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		// The end of the workload would give a cut-off call an unknown outcome without a fault of
		// the cluster.
		c.next(context.WithoutCancel(ctx))
		pause(ctx, time.Duration(c.rnd.Int64N(2*int64(c.cfg.Pause))))
	}
}

// next makes a random call.
func (c *client) next(ctx context.Context) {
	name := fmt.Sprintf("%s-%d", c.cfg.Run, c.rnd.IntN(c.cfg.Objects))
	call := Call{Name: name, Verb: Get}
	revision, exists := c.known[name], c.known[name] != 0
	switch n := c.rnd.IntN(20); {
	case n < 6:
	case n < 8:
		call = Call{Verb: List}
	case n < 10 && exists:
		call.Verb, call.Require = Delete, revision
	case exists:
		call.Verb, call.Require = Update, revision
	default:
		call.Verb = Create
	}
	if call.Verb == Create || call.Verb == Update {
		c.writes++
		call.Token = fmt.Sprintf("%s-%d", c.name, c.writes)
	}
	c.call(ctx, c.server, c.name, &call)
	switch {
	case call.Verb == List:
	case call.Outcome == Absent || call.Outcome == Done && call.Verb == Delete:
		c.known[name] = 0
	case call.Outcome == Done:
		c.known[name] = call.Revision
	case call.Outcome == Conflict || call.Outcome == Exists || call.Outcome == Unknown:
		// The client must know the revision before it writes again.
		look := Call{Name: name, Verb: Get}
		c.call(ctx, c.server, c.name, &look)
		if look.Outcome == Done || look.Outcome == Absent {
			c.known[name] = look.Revision
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// follow starts a watcher. It asks pick for a server at the start of each watch.
func (w *Workload) follow(ctx context.Context, name string, number int, pick func() Server) *Watch {
	into := w.record.Watch(name)
	rnd := rand.New(rand.NewPCG(w.cfg.Seed, uint64(1000+number)))
	w.watchers.Go(func() {
		for ctx.Err() == nil {
			s := pick()
			last, ok := into.Last()
			if ok {
				ok = w.watchOnce(ctx, s, into, last, 5+rnd.Int64N(10))
			}
			if !ok {
				w.restart(ctx, s, into)
			}
			pause(ctx, retryPause)
		}
	})
	return into
}

// restart lists, as an informer does at the start and after 410 Gone.
func (w *Workload) restart(ctx context.Context, s Server, into *Watch) {
	limited, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	c := Call{Verb: List}
	if w.objects(s).do(limited, &c); c.Outcome == Done {
		into.Restart(c.Revision, c.Items)
		w.begin.Do(func() { close(w.begun) })
	}
}

// watchOnce watches until the server ends the watch, or is silent for too long. It returns false
// when the watcher's revision is compacted.
func (w *Workload) watchOnce(ctx context.Context, s Server, into *Watch, after uint64, seconds int64) bool {
	limited, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+w.cfg.CallTimeout)
	defer cancel()
	from, err := w.objects(s).watch(limited, after, seconds)
	if err != nil {
		return !gone(err)
	}
	defer from.Stop()
	for e := range from.ResultChan() {
		if e.Type == watch.Error {
			return !gone(apierrors.FromObject(e.Object))
		}
		if !into.take(e) {
			return true
		}
	}
	return true
}

func gone(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// take records an event. It returns false for an incomplete event, which a broken connection may
// leave.
func (w *Watch) take(e watch.Event) bool {
	kind, ok := map[watch.EventType]Kind{watch.Added: Added, watch.Modified: Modified, watch.Deleted: Deleted,
		watch.Bookmark: Progress}[e.Type]
	m, isMap := e.Object.(*corev1.ConfigMap)
	if !ok || !isMap {
		return false
	}
	if kind == Progress {
		revision, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
		if err != nil {
			return false
		}
		w.Event(Event{Progress, Item{Revision: revision}})
		return true
	}
	item, err := itemOf(m)
	if err != nil {
		return false
	}
	w.Event(Event{kind, item})
	return true
}
