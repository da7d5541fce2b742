package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/barque/barque/internal/remains"
)

// Remains are the pods in a runtime that is not the node's own.
func Remains(endpoint string) remains.Kind {
	return remains.Kind{Name: "pods in " + endpoint, Find: func(ctx context.Context) ([]string, error) {
		client, ids, err := sandboxes(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		return ids, client.Close()
	}, Remove: func(ctx context.Context) error {
		client, ids, err := sandboxes(ctx, endpoint)
		if err != nil {
			return err
		}
		for _, id := range ids {
			err = errors.Join(err, client.StopPodSandbox(ctx, id), client.RemovePodSandbox(ctx, id))
		}
		return errors.Join(err, client.Close())
	}}
}

func sandboxes(ctx context.Context, endpoint string) (*Client, []string, error) {
	client, err := Dial(endpoint)
	if err != nil {
		return nil, nil, err
	}
	all, err := client.ListPodSandboxes(ctx, nil)
	if err != nil {
		err = fmt.Errorf("list the pods of the container runtime, which has to run for that: %w", err)
		return nil, nil, errors.Join(err, client.Close())
	}
	var ids []string
	for _, s := range all {
		if s.Labels[LabelPodUID] != "" {
			ids = append(ids, s.Id)
		}
	}
	return client, ids, nil
}
