package status

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// Detail is what a server finds out, or is told by the program around it, only when it is asked for
// it.
type Detail struct {
	// Ways are the ways from this server to the other members.
	Ways []Way `json:"ways,omitempty"`
	// Report is what the program around the store says; see Config.Report.
	Report json.RawMessage `json:"report,omitempty"`
}

// Way is the way from one server to a member.
type Way struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// RTT is how long the fastest of some exchanges over the servers' own connection took, and
	// Error why there was none.
	RTT   time.Duration `json:"rtt,omitempty"`
	Error string        `json:"error,omitempty"`
}

// statusQuestion is what a server is asked with peer.CallStatus. No payload asks for what it has at
// hand.
type statusQuestion struct {
	Detail bool `json:"detail,omitempty"`
}

const (
	// wayTimeout bounds the look at the ways. It is shorter than Timeouts.Call, within which the
	// server that looks must answer.
	wayTimeout = 800 * time.Millisecond
	// wayTries is how many exchanges there are: the first one may have to open the connection.
	wayTries = 3
)

// detailed returns this server's status with its Detail.
func (b *Board) detailed(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, wayTimeout)
	defer cancel()
	var report []byte
	var asking sync.WaitGroup
	if b.report != nil {
		asking.Go(func() { report = b.report(ctx) })
	}
	ways := b.ways(ctx)
	asking.Wait()
	s := b.server.Status()
	s.Detail = &Detail{Ways: ways, Report: report}
	return s
}

// ways looks how far away the other members are.
func (b *Board) ways(ctx context.Context) []Way {
	others := slices.DeleteFunc(b.server.Members(), func(m group.Member) bool { return m.Self })
	ways := make([]Way, len(others))
	var asking sync.WaitGroup
	for i, m := range others {
		ways[i] = Way{ID: m.ID, Name: m.Name}
		asking.Go(func() {
			for try := range wayTries {
				began := time.Now()
				if err := b.server.Ping(ctx, m.ID); err != nil {
					if try == 0 {
						ways[i].Error = err.Error()
					}
					return
				}
				if took := time.Since(began); try == 0 || took < ways[i].RTT {
					ways[i].RTT = took
				}
			}
		})
	}
	asking.Wait()
	return ways
}
