// Package lateness knows how late the servers of a group get a CPU, and extends time-outs by that.
// A server measures its own scheduling delay. It learns those of the others with the questions for
// their status, which the leader asks each second: question and answer carry one.
//
// A server that is short of CPU hears late and answers late. Without the extension it finds a
// living leader lost, or is found lost. The extension is bounded, and none on machines that are not
// short of CPU: see group.Timeouts.Extension.
package lateness

import (
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// believed is for how long the report of another server counts. It is as long as a server remembers
// its own delays.
const believed = 30 * time.Second

// Lateness has the scheduling delays of this server and of the others. Its methods may be called
// from any goroutine.
type Lateness struct {
	own      func() time.Duration
	timeouts group.Timeouts

	mu     sync.Mutex
	others map[string]report
}

// report is another server's measurement.
type report struct {
	delay time.Duration
	came  time.Time
}

// New returns a Lateness. own returns the scheduling delay of this server.
func New(own func() time.Duration, timeouts group.Timeouts) *Lateness {
	return &Lateness{own: own, timeouts: timeouts, others: make(map[string]report)}
}

// Own returns the scheduling delay of this server.
func (l *Lateness) Own() time.Duration { return l.own() }

// Learn takes the delay that another server has reported.
func (l *Lateness) Learn(id string, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others[id] = report{delay, time.Now()}
}

// Extension returns by how much the time-outs of exchanges with a server are extended. An empty ID,
// or this server's, is for waits that concern no other server.
func (l *Lateness) Extension(id string) time.Duration {
	l.mu.Lock()
	delay := time.Duration(0)
	if r, ok := l.others[id]; ok && time.Since(r.came) < believed {
		delay = r.delay
	}
	l.mu.Unlock()
	return l.timeouts.Extension(max(delay, l.own()))
}
