package node

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/internal/lifecycle"
)

// grantAgain is the pause after a failed attempt to grant the rights to kubelets.
const grantAgain = 5 * time.Second

// startKubeletRights gives this server's certificate for kubelets its rights to those that ask the
// API about it: kubelets of a version before 28 November 2026, and foreign ones. The leader creates
// the binding with the other default ones, unless it is of such a version itself.
func (s *server) startKubeletRights(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.api.LoopbackConfig())
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "rights to kubelets", Run: func(ctx context.Context) error {
		for {
			err := rbac.GrantKubeletClient(ctx, client)
			if err == nil {
				<-ctx.Done()
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(grantAgain):
			}
			s.logger.Warn("kubelets of earlier versions may refuse this server; trying again", "retryIn", grantAgain, "err",
				err)
		}
	}})
}
