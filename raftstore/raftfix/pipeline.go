package raftfix

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline is Raft's pipeline to a follower, which takes the answers out of it whether Raft asks
// for them or not.
//
// Raft stops to ask after an answer that ends the pipeline: a refusal, or one from a later term. If
// it is just sending the next message then, the pipeline waits for the answer to be taken, and Raft
// for the message to be sent, for ever: the follower gets heartbeats and no entries, and Raft
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

// drained is Raft's transport, whose pipelines are such ones.
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

// take holds what Raft has not asked for. That is little: as many messages as are under way at a
// time wait for their answers.
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
