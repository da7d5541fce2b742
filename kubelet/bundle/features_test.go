package bundle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestRuncIsAskedOnce: the answer is remembered and a failure is not. A runc that hangs delays no
// caller for long.
func TestRuncIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		o := onceAnswered{ask: func(ctx context.Context) ([]byte, error) {
			if asked++; asked == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []byte("{}"), nil
		}}
		if _, err := o.get(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it hangs: %v", err)
		}
		for range 2 {
			if answer, err := o.get(); err != nil || string(answer) != "{}" {
				t.Errorf("%q, %v", answer, err)
			}
		}
		if asked != 2 {
			t.Errorf("asked %d times, want 2", asked)
		}
	})
}
