package status

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// Detail is the part of a server's status that is only collected on request.
type Detail struct {
	// Ways are the ways from this server to the other members.
	Ways []Way `json:"ways,omitempty"`
	// Report is the report of the program around the store; see Config.Report.
	Report json.RawMessage `json:"report,omitempty"`
}

// Way is the way from one server to a member.
type Way struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// RTT is the fastest of some exchanges over the servers' own connection, and Error the reason
	// of a failure.
	RTT   time.Duration `json:"rtt,omitempty"`
	Error string        `json:"error,omitempty"`
}

// statusQuestion is the payload of peer.CallStatus. An empty payload asks for data at hand only.
type statusQuestion struct {
	Detail bool `json:"detail,omitempty"`
	// From is the server that asks, and SchedulingDelay its own. Servers of earlier versions send
	// and read neither.
	From            string        `json:"from,omitempty"`
	SchedulingDelay time.Duration `json:"schedulingDelay,omitempty"`
}

const (
	// wayTimeout bounds the measurement of round trips. It is shorter than Timeouts.Call, within
	// which the measuring server must answer.
	wayTimeout = 800 * time.Millisecond
	// wayTries is the number of exchanges: the first one may have to open the connection.
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

// ways measures the round trips to the other members.
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
