package node

import (
	"context"
	"encoding/json"
	"sync"
	"time"
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

// statusQuestion is what a server is asked with callStatus. No payload asks for what it has at
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

// PeerDetails asks all members for their status with its Detail, all at once, each for a limited
// time. A member that others cannot reach makes it take longer than PeerStatus.
func (n *Node) PeerDetails(ctx context.Context) []PeerStatus {
	return n.askAll(ctx, statusQuestion{Detail: true})
}

// detailed returns this server's status with its Detail.
func (n *Node) detailed(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, wayTimeout)
	defer cancel()
	var report []byte
	var asking sync.WaitGroup
	if n.cfg.Report != nil {
		asking.Go(func() { report = n.cfg.Report(ctx) })
	}
	ways := n.ways(ctx)
	asking.Wait()
	s := n.Status()
	s.Detail = &Detail{Ways: ways, Report: report}
	return s
}

// ways looks how far away the other members are.
func (n *Node) ways(ctx context.Context) []Way {
	others := n.others()
	ways := make([]Way, len(others))
	var asking sync.WaitGroup
	for i, m := range others {
		ways[i] = Way{ID: m.ID, Name: m.Name}
		asking.Go(func() {
			for try := range wayTries {
				began := time.Now()
				if err := n.ping(ctx, m.ID); err != nil {
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

// handleStatus answers callStatus.
func (n *Node) handleStatus(ctx context.Context, payload []byte) (byte, []byte) {
	var q statusQuestion
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &q); err != nil {
			return answerRefused, []byte(err.Error())
		}
	}
	status := n.statusFor(ctx, q)
	data, err := json.Marshal(status)
	if err != nil {
		return refuse(err)
	}
	return answerOK, data
}

func (n *Node) statusFor(ctx context.Context, q statusQuestion) Status {
	if q.Detail {
		return n.detailed(ctx)
	}
	return n.Status()
}
