package clustertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Poll repeats try until it succeeds; the error is that of the last try.
func Poll(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		// An error that comes because the time is over says nothing.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", limit, last)
		case <-ticker.C:
		}
	}
}

// exceptExists is the error of a repeated try to create an object, except that the object exists:
// then an earlier try, whose answer was lost, has created it.
func exceptExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// TryOnce bounds one try of several.
func TryOnce(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 10*time.Second) // brief: the next try may reach a server that answers
}

// Eventually fails the test when try does not succeed within the limit. It returns how long it
// took.
func Eventually(t testing.TB, limit time.Duration, what string, try func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	if err := Poll(t.Context(), limit, try); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return time.Since(began)
}
