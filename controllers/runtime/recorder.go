package runtime

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/internal/lastevents"
)

// Recorder makes an event recorder for a term: see lastevents.
func Recorder(
	ctx context.Context, client kubernetes.Interface, component string,
) (recorder record.EventRecorder, stop func()) {
	return lastevents.Recorder(ctx, client, component)
}
