package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/probes"
)

// maxHookSaid bounds the output of a failed hook in an event: an event takes no more.
const maxHookSaid = 1 << 10

// hook runs one lifecycle handler of a container. It takes as long as ctx allows.
func (w *worker) hook(ctx context.Context, c *v1.Container, id, ip string, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		var timeout time.Duration
		if deadline, ok := ctx.Deadline(); ok {
			timeout = time.Until(deadline)
		}
		result, err := w.m.Runtime.ExecSync(ctx, id, h.Exec.Command, timeout)
		if err != nil {
			return errors.New(cri.Message(err))
		}
		if result.ExitCode != 0 {
			said := strings.TrimSpace(string(result.Stdout) + string(result.Stderr))
			return fmt.Errorf("command %q exited with %d: %s", strings.Join(h.Exec.Command, " "), result.ExitCode,
				strings.ToValidUTF8(said[:min(len(said), maxHookSaid)], ""))
		}
		return nil
	case h.HTTPGet != nil:
		req, err := probes.HTTPRequest(ctx, h.HTTPGet, c, ip, "kube-lifecycle/1.37")
		if err != nil {
			return err
		}
		return probes.Visit(req)
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case h.TCPSocket != nil:
		return errors.New("a tcpSocket lifecycle handler does nothing; use exec or httpGet")
	}
	return nil
}
