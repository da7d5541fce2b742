package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Probe is one client that writes all the time, gives a server up after half a second, and goes to
// the next: what it feels of a fault is what users feel. It counts in one object, each write on top
// of the last one, so that a write that was acknowledged and lost is found.
type Probe struct {
	// Observe is told of each write. It is called from one goroutine.
	Observe func(server string, begin, end time.Time, ok bool)

	servers   []Server
	namespace string
	name      string

	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	turn     int
	revision uint64 // of the object, as far as is known
	count    int    // that was acknowledged last
	acked    int
	last     time.Time // of an acknowledgement, or the beginning
	longest  time.Duration
	wrong    []string
}

// ProbeTimeout is when the probe gives a server up.
const ProbeTimeout = 500 * time.Millisecond

// probePause lets others work between two writes.
const probePause = 2 * time.Millisecond

// NewProbe returns a probe of its own object, which must not exist.
func NewProbe(servers []Server, namespace, name string) *Probe {
	return &Probe{servers: servers, namespace: namespace, name: name}
}

// Start begins to write.
func (p *Probe) Start(ctx context.Context) {
	ctx, p.stop = context.WithCancel(ctx)
	p.last = time.Now()
	p.running.Go(func() {
		for ctx.Err() == nil {
			begin := time.Now()
			ok := p.write(context.WithoutCancel(ctx)) // one that the end would cut off might take effect later
			end := time.Now()
			if p.Observe != nil {
				p.Observe(p.server().Name, begin, end, ok)
			}
			p.mu.Lock()
			if ok {
				p.acked++
				p.longest, p.last = max(p.longest, end.Sub(p.last)), end
			} else {
				p.turn++
			}
			p.mu.Unlock()
			pause(ctx, probePause)
		}
	})
}

func (p *Probe) server() Server { return p.servers[p.turn%len(p.servers)] }

// write writes the next number through the current server, and reports whether that was
// acknowledged.
func (p *Probe) write(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	o := objectClient{p.server(), p.namespace, p.name}
	next := p.count + 1
	for range 3 { // a number that was written without an answer is looked up first
		c := Call{Verb: Update, Name: p.name, Token: strconv.Itoa(next), Require: p.revision}
		if p.revision == 0 {
			c.Verb = Create
		}
		o.do(ctx, &c)
		switch c.Outcome {
		case Done:
			if c.Revision <= p.revision {
				p.violation("write %d was acknowledged at revision %d, after %d", next, c.Revision, p.revision)
			}
			p.mu.Lock()
			p.revision, p.count = c.Revision, next
			p.mu.Unlock()
			return true
		case Conflict, Exists, Absent:
			if p.look(ctx, o).Outcome != Done {
				return false
			}
			next = p.count + 1
		default:
			return false
		}
	}
	return false
}

// look reads the object, whose revision is not known after a write without an answer, and returns
// what it was told.
func (p *Probe) look(ctx context.Context, o objectClient) Call {
	c := Call{Verb: Get, Name: p.name}
	if o.do(ctx, &c); c.Outcome != Done {
		if c.Outcome == Absent && p.revision != 0 {
			p.violation("write %d was acknowledged, and its object is not there", p.count)
		}
		return c
	}
	n, err := strconv.Atoi(c.Items[0].Token)
	if err != nil || n < p.count || n > p.count+1 || c.Revision < p.revision {
		p.violation("write %d was acknowledged at revision %d, and later the object has %q at revision %d", p.count, p.revision, c.Items[0].Token, c.Revision)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision, p.count = c.Revision, n
	return c
}

func (p *Probe) violation(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) < maxViolations {
		p.wrong = append(p.wrong, "probe: "+fmt.Sprintf(format, args...))
	}
}

// Acknowledged returns how many writes were acknowledged so far; of no probe, none.
func (p *Probe) Acknowledged() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

// ProbeResult is what a probe has met.
type ProbeResult struct {
	Acknowledged int
	Longest      time.Duration // without an acknowledgement
	Violations   []string
	Unjudged     []string // servers of which it was not found out what they have, with the reason
}

// probeLook is how long one look at the end may take.
const probeLook = 2 * time.Second

// Stop ends the probe, looks through every server at what is there, and removes it. A server that
// does not answer within patience is not judged. What was found comes with an error, too, which is
// that none answered, or did not remove it.
func (p *Probe) Stop(ctx context.Context, patience time.Duration) (ProbeResult, error) {
	p.stop()
	p.running.Wait()
	p.longest = max(p.longest, time.Since(p.last)) // an outage that lasts has no acknowledgement after it
	silent := p.lookAtAll(ctx, patience)
	result := ProbeResult{Acknowledged: p.acked, Longest: p.longest, Violations: p.wrong}
	if len(silent) == len(p.servers) {
		return result, &SilentError{"showed what the probe has written", patience, strings.Join(silent, "; ")}
	}
	for _, s := range silent {
		result.Unjudged = append(result.Unjudged, fmt.Sprintf("it was not seen within %v what there is of the probe's writes through %s", patience, s))
	}
	err := p.remove(ctx, patience)
	result.Violations = p.wrong // it may have looked again
	return result, err
}

// lookAtAll looks through every server, again and again through those that do not answer. It
// returns the ones that never did, and what they said.
func (p *Probe) lookAtAll(ctx context.Context, patience time.Duration) (silent []string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said := make([]string, len(p.servers))
	looked := make([]bool, len(p.servers))
	for {
		silent = nil
		for i, s := range p.servers {
			if looked[i] {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, probeLook)
			c := p.look(limited, objectClient{s, p.namespace, p.name})
			cancel()
			if looked[i] = c.Outcome == Done || c.Outcome == Absent; looked[i] {
				continue
			}
			if said[i] == "" || ctx.Err() == nil { // what fails because the time is over says nothing
				said[i] = c.Error
			}
			silent = append(silent, fmt.Sprintf("%s: %s", s.Name, said[i]))
		}
		if len(silent) == 0 || ctx.Err() != nil {
			return silent
		}
		pause(ctx, retryPause)
	}
}

// remove removes the object through whichever server does.
func (p *Probe) remove(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, &silenceError{patience})
	defer cancel()
	for p.revision != 0 {
		limited, cancel := context.WithTimeout(ctx, probeLook)
		o := objectClient{p.server(), p.namespace, p.name}
		c := Call{Verb: Delete, Name: p.name, Require: p.revision}
		o.do(limited, &c)
		if c.Outcome == Conflict {
			p.look(limited, o) // its last write had no answer
		}
		cancel()
		switch {
		case c.Outcome == Done || c.Outcome == Absent:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("remove the probe's object: %w: %s", context.Cause(ctx), c.Error)
		case c.Outcome != Conflict:
			p.turn++
			pause(ctx, retryPause)
		}
	}
	return nil
}
