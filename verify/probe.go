package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Probe is one client that writes all the time. It gives a server up after half a second and uses
// the next, so that it meets a fault as users do. It counts in one object, each write on top of the
// last, so that the loss of an acknowledged write is found.
type Probe struct {
	// Observe receives each write. It is called from one goroutine.
	Observe func(server string, begin, end time.Time, ok bool)

	servers   []Server
	namespace string
	name      string

	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	turn     int
	revision uint64 // the last known revision of the object
	count    int    // the last acknowledged number
	acked    int
	last     time.Time // the time of the last acknowledgement, or of the start
	longest  time.Duration
	wrong    []string
}

// ProbeTimeout is the time after which the probe gives a server up.
const ProbeTimeout = 500 * time.Millisecond

// probePause leaves time for other clients between two writes.
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
			ok := p.write(context.WithoutCancel(ctx)) // a cut-off write might take effect later
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

// write writes the next number through the current server, and reports whether it was acknowledged.
func (p *Probe) write(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	o := objectClient{p.server(), p.namespace, p.name}
	next := p.count + 1
	for range 3 { // a number without an answer is looked up first
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

// look reads the object and returns the call. A write without an answer leaves its revision
// unknown.
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
		p.violation("write %d was acknowledged at revision %d, and later the object has %q at revision %d", p.count,
			p.revision, c.Items[0].Token, c.Revision)
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

// Acknowledged returns the number of acknowledged writes; of a nil probe, none.
func (p *Probe) Acknowledged() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

// ProbeResult has the findings of a probe.
type ProbeResult struct {
	Acknowledged int
	Longest      time.Duration // without an acknowledgement
	Violations   []string
	Unjudged     []string // servers whose object could not be read, with the reason
}

// probeLook bounds one read at the end.
const probeLook = 2 * time.Second

// Stop ends the probe, reads the object through every server, and removes it. A server without an
// answer within patience is not judged. The findings come with an error too: that no server
// answered, or that none removed the object.
func (p *Probe) Stop(ctx context.Context, patience time.Duration) (ProbeResult, error) {
	p.stop()
	p.running.Wait()
	p.longest = max(p.longest, time.Since(p.last)) // an outage at the end has no acknowledgement after it
	silent := p.lookAtAll(ctx, patience)
	result := ProbeResult{Acknowledged: p.acked, Longest: p.longest, Violations: p.wrong}
	if len(silent) == len(p.servers) {
		return result, &SilentError{"showed what the probe has written", patience, strings.Join(silent, "; ")}
	}
	for _, s := range silent {
		result.Unjudged = append(result.Unjudged,
			fmt.Sprintf("it was not seen within %v what there is of the probe's writes through %s", patience, s))
	}
	err := p.remove(ctx, patience)
	result.Violations = p.wrong // the removal may have found more
	return result, err
}

// lookAtAll reads the object through every server, and repeats the failed reads. It returns the
// servers that never answered, with their errors.
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
			if said[i] == "" || ctx.Err() == nil { // a failure that the deadline caused explains nothing
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

// remove removes the object through any server that answers.
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
