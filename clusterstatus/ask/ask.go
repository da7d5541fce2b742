package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/enroll"
)

// Asker asks servers about the cluster. It needs no quorum, and no server in particular: where the
// one of the kubeconfig does not answer it asks those that are known from elsewhere, and where one
// server cannot reach another it asks that one itself.
type Asker struct {
	Config     func() (*rest.Config, error) // of the client
	Kubeconfig func() (string, error)       // the path of the kubeconfig, if there is one
	Servers    []string                     // addresses of API servers, instead of the kubeconfig's
	DataDir    string                       // of a server on this machine, which knows the others
	Timeout    time.Duration
}

// Heard is what came of asking.
type Heard struct {
	Config       *rest.Config
	Observations []*clusterstatus.Observation
	At           map[string]string // the address at which each server, by name, has answered
	unreached    []clusterstatus.Unreached
	begun        *clusterstatus.Warning // what the server on this machine was in the middle of
	Procedures   clusterstatus.Procedures
}

// To is the client's configuration for an address.
func (h *Heard) To(address string) *rest.Config {
	config := rest.CopyConfig(h.Config)
	config.Host = address
	return config
}

// Ask asks until at least one server has answered. When none has, the error says which were asked
// and what each said; the addresses are returned with it.
func (a *Asker) Ask(ctx context.Context) (*Heard, error) {
	config, err := a.Config()
	if err != nil {
		return nil, err
	}
	h := &Heard{Config: config, At: map[string]string{}, begun: Begun(a.DataDir), Procedures: a.Procedures()}
	first := a.Servers
	if len(first) == 0 {
		first = []string{config.Host}
	}
	errs := h.askAll(ctx, first, a.Timeout)
	if len(h.Observations) == 0 && len(a.Servers) == 0 && !slices.ContainsFunc(errs, answered) {
		errs = append(errs, h.askAll(ctx, a.known(), a.Timeout)...)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(h.Observations) == 0 {
		return h, nobodyAnswers(config, errs, h)
	}
	h.askAll(ctx, h.missing(), min(a.Timeout, 2*time.Second))
	return h, nil
}

// Status is the status of the cluster by all that was heard.
func (h *Heard) Status() *clusterstatus.ClusterStatus {
	if len(h.Observations) == 0 {
		return &clusterstatus.ClusterStatus{From: []string{}, Time: time.Now().UTC(), Health: clusterstatus.NoAnswer, Unreached: h.unreached, Members: []clusterstatus.MemberStatus{}}
	}
	s := clusterstatus.AssembleFor(h.Procedures, time.Now().UTC(), h.Observations...)
	s.Unreached = h.unreached
	if h.begun != nil {
		s.Warn(*h.begun)
	}
	return s
}

// answered tells whether a server answered, though not what was asked: then others would not
// either.
func answered(err error) bool {
	var refusal *remote.RefusalError
	return errors.As(err, &refusal) && refusal.Status < http.StatusInternalServerError
}

// askAll asks addresses, all at once, and adds what they say.
func (h *Heard) askAll(ctx context.Context, addresses []string, timeout time.Duration) []error {
	var mu sync.Mutex
	var errs []error
	var asking sync.WaitGroup
	for _, address := range addresses {
		asking.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, &remote.NoAnswerError{Within: timeout})
			defer cancel()
			o, err := remote.Observation(ctx, h.Config, address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				h.unreached = append(h.unreached, clusterstatus.Unreached{Address: address, Error: inner(err).Error()})
				return
			}
			if len(h.Observations) == 0 || o.Cluster == h.Observations[0].Cluster {
				h.Observations = append(h.Observations, o)
				h.At[o.From] = cmp.Or(h.At[o.From], address)
				return
			}
			h.unreached = append(h.unreached, clusterstatus.Unreached{Address: address, Error: fmt.Sprintf("it belongs to another cluster, %s", o.Cluster)})
		})
	}
	asking.Wait()
	slices.SortFunc(h.unreached, func(a, b clusterstatus.Unreached) int { return cmp.Compare(a.Address, b.Address) })
	return errs
}

// inner is the error of a request without the request, which is known.
func inner(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// missing are the addresses of the servers of which nothing is known so far.
func (h *Heard) missing() []string {
	s := clusterstatus.Assemble(time.Now(), h.Observations...)
	var out []string
	for _, m := range s.Members {
		if m.Role == "server" && m.Store == nil && m.API != "" && !slices.Contains(s.From, m.Name) {
			out = append(out, "https://"+m.API)
		}
	}
	return out
}

// known are the addresses of servers that this machine knows of, beside the kubeconfig's.
func (a *Asker) known() []string {
	var out []string
	for _, s := range enroll.KnownServers(a.DataDir) {
		out = append(out, "https://"+s)
	}
	path, err := a.Kubeconfig()
	if err != nil {
		return out
	}
	if plan, err := devcluster.Load(filepath.Dir(path)); err == nil {
		for _, s := range plan.Servers() {
			out = append(out, "https://"+s)
		}
	}
	return out
}

// nobodyAnswers says who was asked, and what can be done.
func nobodyAnswers(config *rest.Config, errs []error, h *Heard) error {
	err := errors.Join(errs...)
	var refused *remote.RefusalError
	if errors.As(err, &refused) {
		if advice := remote.RightsAdvice(config, err); advice != "" {
			err = fmt.Errorf("%w; %s", err, advice)
		}
		return err // the other advice is to ask for what was just asked for
	}
	here, where := "", "on the servers themselves"
	if h.Procedures.Here {
		where = "here"
	}
	if h.begun != nil {
		here = fmt.Sprintf(". And %s: %s", h.begun.Text, h.begun.Mend)
	}
	return &exitcode.Error{Code: exitcode.NoAnswer, Err: fmt.Errorf("no server answers: %w; give the address of another one with --server, and look %s: %s%s", err, where, h.Procedures.Any, here)}
}

// IsNoAnswer tells whether the error is that no server has answered.
func IsNoAnswer(err error) bool {
	var coded *exitcode.Error
	return errors.As(err, &coded) && coded.Code == exitcode.NoAnswer
}
