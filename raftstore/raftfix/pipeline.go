package raftfix

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline is Raft's pipeline to a follower. It takes the answers out of it regardless of Raft.
//
// Raft stops to take answers after one that ends the pipeline: a refusal, or one from a later term.
// If it is just sending the next message then, the pipeline waits for the answer to be taken, and
// Raft for the message to be sent, forever. The follower gets heartbeats and no entries, and Raft
// cannot be shut down (raft#612).
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
	taking  sync.WaitGroup
}

func newPipeline(p raft.AppendPipeline) *pipeline {
	taken := &pipeline{AppendPipeline: p, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	taken.taking.Go(taken.take) // ends with Close, which Raft calls on each pipeline, and which waits for it
	return taken
}

// drained is Raft's transport with such pipelines.
type drained struct{ Transport }

// DrainPipelines returns a transport whose pipelines never wait for Raft to take an answer.
func DrainPipelines(inner Transport) Transport { return &drained{inner} }

// AppendEntriesPipeline implements raft.Transport.
func (d *drained) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := d.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(inner), nil
}

// take buffers the answers that Raft has not taken. They are few: as many as messages may be under
// way at a time.
func (p *pipeline) take() {
	var held []raft.AppendFuture
	for {
		var (
			out  chan<- raft.AppendFuture
			next raft.AppendFuture
		)
		if len(held) > 0 {
			out, next = p.answers, held[0]
		}
		select {
		case answer := <-p.AppendPipeline.Consumer():
			held = append(held, answer)
		case out <- next:
			held = held[1:]
		case <-p.closed:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	p.taking.Wait()
	return p.AppendPipeline.Close()
}
