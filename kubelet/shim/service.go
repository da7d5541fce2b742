package main

import (
	"context"
	"os"
	"sync"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"

	"github.com/barque/barque/kubelet/exits"
)

// service is containerd's task service with the additions of this shim.
type service struct {
	taskAPI.TTRPCTaskService
	exits exits.Dir // empty where the shim has no such directory

	mu      sync.Mutex
	outputs map[string]*output // by the task's ID
}

func wrap(inner taskAPI.TTRPCTaskService) *service {
	return &service{TTRPCTaskService: inner, exits: exits.Dir(os.Getenv(exits.Env)), outputs: map[string]*output{}}
}

// RegisterTTRPC registers this service in place of the one it wraps.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskAPI.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create makes a task, and keeps its output from now on.
func (s *service) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	kept := keep(r.Stdout, r.Stderr)
	response, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		kept.close()
		return nil, err
	}
	s.mu.Lock()
	s.outputs[r.ID] = kept
	s.mu.Unlock()
	return response, nil
}

// State returns the state of a process. A containerd that has just started asks for it before it
// reads the output.
func (s *service) State(ctx context.Context, r *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	state, err := s.TTRPCTaskService.State(ctx, r)
	if err == nil && r.ExecID == "" && state.Status == tasktypes.Status_STOPPED {
		s.output(r.ID).offer()
	}
	return state, err
}

// Delete forgets a process. The end of a task is recorded before.
func (s *service) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	if r.ExecID == "" {
		s.record(ctx, r.ID)
	}
	response, err := s.TTRPCTaskService.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		s.output(r.ID).close()
		s.mu.Lock()
		delete(s.outputs, r.ID)
		s.mu.Unlock()
	}
	return response, err
}

func (s *service) output(id string) *output {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outputs[id]
}

// record records the end of a task. After a failure the exit code is lost only if containerd ends
// before it has recorded it.
func (s *service) record(ctx context.Context, id string) {
	if s.exits == "" {
		return
	}
	state, err := s.TTRPCTaskService.State(ctx, &taskAPI.StateRequest{ID: id})
	if err != nil || state.Status != tasktypes.Status_STOPPED {
		return // the call that follows fails with the reason
	}
	err = s.exits.Write(id,
		exits.Record{ExitCode: state.ExitStatus, FinishedAt: state.ExitedAt.AsTime(),
			OOMKilled: exits.OOMKilled(state.Bundle)})
	if err != nil {
		log.G(ctx).WithField("id", id).WithError(err).Error("cannot record the end of a container")
	}
}
