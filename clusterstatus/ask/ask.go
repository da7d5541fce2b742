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

// Asker asks servers about the cluster. It needs no quorum and no particular server. If the
// kubeconfig's server does not answer, it asks servers whose addresses are known from elsewhere. If
// one server cannot reach another, the asker asks that one directly.
type Asker struct {
	Config     func() (*rest.Config, error) // of the client
	Kubeconfig func() (string, error)       // the path of the kubeconfig, if any
	Servers    []string                     // addresses of API servers, instead of the kubeconfig's
	DataDir    string                       // of the server on this machine, whose record has the others' addresses
	Timeout    time.Duration
}

// Heard holds the answers of the servers.
type Heard struct {
	Config       *rest.Config
	Observations []*clusterstatus.Observation
	At           map[string]string // the address at which each server, by name, has answered
	unreached    []clusterstatus.Unreached
	begun        *clusterstatus.Warning // the unfinished procedure of the server on this machine
	Procedures   clusterstatus.Procedures
}

// To is the client's configuration for an address.
func (h *Heard) To(address string) *rest.Config {
	config := rest.CopyConfig(h.Config)
	config.Host = address
	return config
}

// Ask returns when all servers were asked and at least one has answered. If none has, the error
// lists the asked servers with their errors; the addresses are returned with it.
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

// Hosts are the addresses at which a request for a server may be sent: its own that has answered,
// that of another one, which relays it, and its own in the others' view.
func (h *Heard) Hosts(m clusterstatus.MemberStatus) (hosts []string) {
	var best string
	if len(h.Observations) > 0 {
		best = h.At[h.Status().From[0]]
	}
	for _, host := range []string{h.At[m.Name], best, "https://" + m.API} {
		if host != "" && host != "https://" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// Status is the status of the cluster from all answers.
func (h *Heard) Status() *clusterstatus.ClusterStatus {
	if len(h.Observations) == 0 {
		return &clusterstatus.ClusterStatus{From: []string{}, Time: time.Now().UTC(), Health: clusterstatus.NoAnswer,
			Unreached: h.unreached, Members: []clusterstatus.MemberStatus{}}
	}
	s := clusterstatus.AssembleFor(h.Procedures, time.Now().UTC(), h.Observations...)
	s.Unreached = h.unreached
	if h.begun != nil {
		s.Warn(*h.begun)
	}
	return s
}

// answered reports whether a server has answered, if only with a refusal: the others would refuse
// as well.
func answered(err error) bool {
	var refusal *remote.RefusalError
	return errors.As(err, &refusal) && refusal.Status < http.StatusInternalServerError
}

// askAll asks all addresses at once, and adds their answers.
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
			h.unreached = append(h.unreached,
				clusterstatus.Unreached{Address: address,
					Error: fmt.Sprintf("it belongs to another cluster, %s", o.Cluster)})
		})
	}
	asking.Wait()
	slices.SortFunc(h.unreached, func(a, b clusterstatus.Unreached) int { return cmp.Compare(a.Address, b.Address) })
	return errs
}

// inner strips the request, which is known, from a request's error.
func inner(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// missing returns the addresses of servers that have not answered so far.
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

// known returns the addresses of servers in this machine's records, besides the kubeconfig's.
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

// nobodyAnswers is the error if no server has answered. It lists the addresses and the remedies.
func nobodyAnswers(config *rest.Config, errs []error, h *Heard) error {
	err := errors.Join(errs...)
	var refused *remote.RefusalError
	if errors.As(err, &refused) {
		if advice := remote.RightsAdvice(config, err); advice != "" {
			err = fmt.Errorf("%w; %s", err, advice)
		}
		return err // the other advice would be to repeat this question
	}
	here, where := "", "on the servers themselves"
	if h.Procedures.Here {
		where = "here"
	}
	if h.begun != nil {
		here = fmt.Sprintf(". And %s: %s", h.begun.Text, h.begun.Mend)
	}
	return &exitcode.Error{Code: exitcode.NoAnswer,
		Err: fmt.Errorf("no server answers: %w; give the address of another one with --server, and look %s: %s%s", err,
			where, h.Procedures.Any, here)}
}

// IsNoAnswer reports whether the error is that no server has answered.
func IsNoAnswer(err error) bool {
	var coded *exitcode.Error
	return errors.As(err, &coded) && coded.Code == exitcode.NoAnswer
}
