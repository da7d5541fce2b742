package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// AwaitReady waits until the API server is ready for the leader's work, which creates in a
// new cluster the objects that the rest of readiness requires. It does not wait for the
// checks NotAtStart.
func (s *Server) AwaitReady(ctx context.Context) error {
	config := s.LoopbackConfig()
	config.Timeout = 2 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	request := func() *rest.Request {
		r := client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("exclude", BootstrapCheck)
		for _, plugins := range s.cfg.Plugins {
			r = r.Param("exclude", plugins.Name())
		}
		for _, check := range s.cfg.NotAtStart {
			r = r.Param("exclude", check)
		}
		return r
	}
	for {
		// Without ctx: a request that ends early is an error to its server, and this one is
		// answered soon.
		err := request().Do(context.WithoutCancel(ctx)).Error()
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
