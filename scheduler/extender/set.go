package extender

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Set has all extenders; all profiles share them. Ignorable extenders are called last. A nil Set
// has none.
type Set struct {
	list []*extender
	log  *slog.Logger
}

// New returns the extenders of a valid configuration. An error names the field of an unusable TLS
// configuration.
func New(list []configv1.Extender, log *slog.Logger) (*Set, error) {
	s := &Set{log: log}
	for i, c := range list {
		e, err := newExtender(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field.NewPath("extenders").Index(i).Child("tlsConfig"), err)
		}
		s.list = append(s.list, e)
	}
	slices.SortStableFunc(s.list, func(a, b *extender) int {
		switch {
		case a.config.Ignorable == b.config.Ignorable:
			return 0
		case b.config.Ignorable:
			return -1
		default:
			return 1
		}
	})
	return s, nil
}

// Notes lists extenders whose TLS protects less than expected, by their place in the list.
func Notes(list []configv1.Extender) (notes []string) {
	for i := range list {
		if e := &list[i]; unverified(e) && (e.TLSConfig == nil || !e.TLSConfig.Insecure) {
			notes = append(notes,
				fmt.Sprintf("%s: the extender's certificate is not verified; give tlsConfig.caFile",
					field.NewPath("extenders").Index(i)))
		}
	}
	return notes
}

// asked returns the extenders that have a verb and are interested in the pod.
func (s *Set) asked(pod *v1.Pod, verb func(*configv1.Extender) string) []*extender {
	if s == nil {
		return nil
	}
	var out []*extender
	for _, e := range s.list {
		if verb(&e.config) != "" && e.interested(pod) {
			out = append(out, e)
		}
	}
	return out
}

// Chooses reports whether any extender filters or scores. Then the number of nodes found matters.
func (s *Set) Chooses() bool {
	return s != nil && slices.ContainsFunc(s.list, func(e *extender) bool {
		return e.config.FilterVerb != "" || e.config.PrioritizeVerb != ""
	})
}

// Filter returns the nodes that all extenders accept, asked in turn. It adds the others' reasons to
// fit. The error is of an extender that is not ignorable.
func (s *Set) Filter(
	ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, fit *framework.FitError,
) ([]fwk.NodeInfo, error) {
	for _, e := range s.asked(pod, func(c *configv1.Extender) string { return c.FilterVerb }) {
		if len(nodes) == 0 {
			break
		}
		taken, answer, err := e.filter(ctx, pod, nodes)
		if err != nil {
			if s.skips(e, pod, err) {
				continue
			}
			return nil, err
		}
		if len(taken) < len(nodes) {
			fit.Plugins.Insert(framework.ExtenderName)
			reject(fit, e, nodes, taken, answer)
		}
		nodes = taken
	}
	return nodes, nil
}

// reject notes the nodes that an extender left out.
func reject(
	fit *framework.FitError, e *extender, nodes, taken []fwk.NodeInfo, answer *extenderv1.ExtenderFilterResult,
) {
	for i := range nodes {
		name := nodes[i].Node().Name
		if len(taken) > 0 && taken[0] == nodes[i] { // in the same order
			taken = taken[1:]
			continue
		}
		status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) were left out by %s", e))
		if why, ok := answer.FailedAndUnresolvableNodes[name]; ok {
			status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
		} else if why, ok := answer.FailedNodes[name]; ok {
			status = fwk.NewStatus(fwk.Unschedulable, why)
		}
		fit.Rejected[name] = status.WithPlugin(framework.ExtenderName)
	}
}

// skips reports whether an error of an extender is ignored.
func (s *Set) skips(e *extender, pod *v1.Pod, err error) bool {
	if e.config.Ignorable {
		s.log.Warn("an extender failed; going on without it", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
	}
	return e.config.Ignorable
}

// Score adds the extenders' scores to those of nodes. It calls all extenders at once; a failed call
// adds nothing.
func (s *Set) Score(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, scores []int64) {
	asked := s.asked(pod, func(c *configv1.Extender) string { return c.PrioritizeVerb })
	if len(asked) == 0 {
		return
	}
	answers := make([]extenderv1.HostPriorityList, len(asked))
	var wg sync.WaitGroup
	for i, e := range asked {
		wg.Go(func() {
			if err := e.call(ctx, e.config.PrioritizeVerb, e.about(pod, nodes), &answers[i]); err != nil {
				answers[i] = nil // the answer may be decoded in part
				s.log.Warn("an extender gives no scores", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
			}
		})
	}
	wg.Wait()
	at := make(map[string]int, len(nodes))
	for i, n := range nodes {
		at[n.Node().Name] = i
	}
	for i, e := range asked {
		for _, p := range answers[i] {
			if n, ok := at[p.Host]; ok {
				scores[n] += weighted(p.Score, e.config.Weight)
			}
		}
	}
}

// maxScore bounds the score of one extender for a node, far from an overflow of the sum. An
// extender may exceed the protocol's maximum.
const maxScore = 1 << 53

func weighted(score, weight int64) int64 {
	const scale = fwk.MaxScore / extenderv1.MaxExtenderPriority
	product := float64(score) * float64(weight) * float64(scale)
	return int64(max(min(product, maxScore), -maxScore))
}

// Bind lets the extender that binds write the binding. took is false when no extender binds this
// pod, or the extender failed and is ignorable.
func (s *Set) Bind(ctx context.Context, pod *v1.Pod, node string) (took bool, err error) {
	for _, e := range s.asked(pod, func(c *configv1.Extender) string { return c.BindVerb }) {
		if err := e.bind(ctx, pod, node); err == nil || !s.skips(e, pod, err) {
			return true, err
		}
	}
	return false, nil
}
