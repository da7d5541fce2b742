package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
)

// readyWithin bounds the check of the store. Load balancers ask every second or so, and give up
// soon.
const readyWithin = 800 * time.Millisecond

var errStoreSlow = errors.New("the store did not answer within " + readyWithin.String())

// StoreCheck returns the check "store" of /readyz. It fails with the reason why the store of this
// server cannot serve, which ready, such as raftstore.Server.Ready, returns. The API shows reasons
// to those who ask for the one check, at /readyz/store; /readyz?verbose only says which checks
// fail, and whoever may see that needs no credentials.
//
// It is no check of /livez: a server without a quorum must not be killed for it, since a restart
// brings none.
func StoreCheck(ready func(context.Context) error) healthz.HealthChecker {
	return healthz.NamedCheck("store", func(r *http.Request) error {
		ctx, cancel := context.WithTimeoutCause(r.Context(), readyWithin, errStoreSlow)
		defer cancel()
		return ready(ctx)
	})
}

// AwaitReady waits until the API server says that it is ready for the leader's work, which gives a
// new cluster what the rest of readiness asks for.
func (s *Server) AwaitReady(ctx context.Context) error {
	config := s.LoopbackConfig()
	config.Timeout = 2 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		// Without ctx: a request that ends early is an error to who serves it, and this one is
		// answered soon.
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("exclude", BootstrapCheck).Do(context.WithoutCancel(ctx)).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
