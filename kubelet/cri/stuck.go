package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd keeps the task of a container whose start ended at the wrong moment, by a deadline or
// with the kubelet (v2.4.2: between task creation and the question for its process ID). Its CRI
// counts such a container as ended. It then stops nothing, and refuses to remove the container and
// the sandbox for as long as the task is there: FailedPrecondition. Its own API, on the same
// socket, ends tasks, as `ctr task kill` and `ctr task delete` do.

// containerdNamespace is where containerd's CRI keeps its containers.
const containerdNamespace = "k8s.io"

// removing calls remove. When the runtime refuses for a task, the tasks of the containers that
// filter selects are ended, and remove is called once more.
func (c *Client) removing(ctx context.Context, filter *runtimeapi.ContainerFilter, remove func() error) error {
	err := remove()
	if status.Code(err) != codes.FailedPrecondition {
		return ignoreNotFound(err)
	}
	stuck, listErr := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, container := range stuck.Containers {
		if taskErr := c.endTask(ctx, container.Id); taskErr != nil {
			return errors.Join(err, fmt.Errorf("end the task of container %s: %w", container.Id, taskErr))
		}
	}
	return ignoreNotFound(remove())
}

// endTask kills a task and deletes it. Without a task it does nothing.
func (c *Client) endTask(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", containerdNamespace)
	// Of a task whose process has ended, Kill says NotFound as well.
	_, err := c.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL)})
	if err == nil {
		_, err = c.tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	}
	if err == nil || IsNotFound(err) {
		_, err = c.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	}
	return ignoreNotFound(err)
}
