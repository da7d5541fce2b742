package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/exits"
)

// tasks is a task service with one task. It asserts the order of calls.
type tasks struct {
	taskAPI.TTRPCTaskService
	state  *taskAPI.StateResponse
	delete func() error
}

func (s *tasks) Create(context.Context, *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	return &taskAPI.CreateTaskResponse{}, nil
}

func (s *tasks) State(context.Context, *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	return s.state, nil
}

func (s *tasks) Delete(context.Context, *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	return &taskAPI.DeleteResponse{}, s.delete()
}

// TestRecordedBeforeForgotten: the end of a task is on the disk when the task is deleted. The end
// of a command in it is not recorded.
func TestRecordedBeforeForgotten(t *testing.T) {
	dir := exits.Dir(t.TempDir())
	t.Setenv(exits.Env, string(dir))
	at := time.Unix(1700000000, 0)
	inner := &tasks{
		state: &taskAPI.StateResponse{Status: tasktypes.Status_STOPPED, ExitStatus: 3, ExitedAt: timestamppb.New(at)}}
	s := wrap(inner)
	inner.delete = func() error {
		if _, found := dir.Read("a"); found {
			t.Error("the end of a command was recorded")
		}
		return nil
	}
	if _, err := s.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a", ExecID: "command"}); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("deleted only after it was recorded")
	inner.delete = func() error {
		if r, found := dir.Read("a"); !found || r.ExitCode != 3 || !r.FinishedAt.Equal(at) {
			t.Errorf("when it is deleted the record is %+v, %v", r, found)
		}
		return failure
	}
	if _, err := s.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a"}); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	inner.state = &taskAPI.StateResponse{Status: tasktypes.Status_RUNNING}
	inner.delete = func() error { return nil }
	if _, err := s.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	if _, found := dir.Read("b"); found {
		t.Error("a task that runs was recorded as ended")
	}
}

// TestOutputIsKept: a reader that comes after the writer has gone gets all, and an end.
func TestOutputIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	inner := &tasks{state: &taskAPI.StateResponse{Status: tasktypes.Status_RUNNING},
		delete: func() error { return nil }}
	s := wrap(inner)
	if _, err := s.Create(t.Context(),
		&taskAPI.CreateTaskRequest{ID: "a", Stdout: path, Stderr: "/dev/null"}); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	inner.state = &taskAPI.StateResponse{Status: tasktypes.Status_STOPPED}
	if _, err := s.State(t.Context(), &taskAPI.StateRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() { // ends at the end of the FIFO
		f, err := os.Open(path)
		if err != nil {
			read <- err.Error()
			return
		}
		defer f.Close()
		all, err := io.ReadAll(f)
		if err != nil {
			all = []byte(err.Error())
		}
		read <- string(all)
	}()
	if got := await.Value(t, "the output", read); got != "last words" {
		t.Errorf("read %q", got)
	}
	if _, err := s.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if len(s.outputs) != 0 {
		t.Errorf("%d outputs are kept for a deleted task", len(s.outputs))
	}
	if f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
		f.Close()
		t.Error("an end for reading stays open after the task")
	}
}

// TestNothingToRead: a container without output delays nothing.
func TestNothingToRead(t *testing.T) {
	var none *output
	none.offer()
	none.close()
	o := keep("", filepath.Join(t.TempDir(), "missing"), "/dev/null")
	o.offer()
	o.close()
	o.offer()
}
