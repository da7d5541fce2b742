package extender

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	// defaultTimeout bounds a call of an extender whose configuration has no time-out.
	defaultTimeout = 5 * time.Second
	// maxAnswer, in bytes, has room for all Nodes of a large cluster.
	maxAnswer = 256 << 20
)

// extender is one server. It is safe for concurrent use.
type extender struct {
	config  configv1.Extender
	client  *http.Client
	managed sets.Set[string]
}

// newExtender fails when the TLS configuration cannot be used, such as for a missing file.
func newExtender(c configv1.Extender) (*extender, error) {
	transport, err := newTransport(&c)
	if err != nil {
		return nil, err
	}
	e := &extender{
		config:  c,
		client:  &http.Client{Transport: transport, Timeout: cmp.Or(c.HTTPTimeout.Duration, defaultTimeout)},
		managed: sets.New[string](),
	}
	for _, r := range c.ManagedResources {
		e.managed.Insert(r.Name)
	}
	return e, nil
}

func newTransport(c *configv1.Extender) (*http.Transport, error) {
	var r rest.Config
	if t := c.TLSConfig; t != nil {
		r.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName,
			CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if unverified(c) {
		r.Insecure = true
	}
	tls, err := rest.TLSConfigFor(&r)
	if err != nil {
		return nil, err
	}
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls}), nil
}

// unverified reports whether the server's certificate is not verified. With enableHTTPS alone it is
// not, as in kube-scheduler.
func unverified(c *configv1.Extender) bool {
	t := c.TLSConfig
	return t != nil && t.Insecure || c.EnableHTTPS && (t == nil || t.CAFile == "" && len(t.CAData) == 0)
}

func (e *extender) String() string { return fmt.Sprintf("extender %s", e.config.URLPrefix) }

// interested reports whether the extender is called for a pod: it manages no resources, or one that
// the pod uses.
func (e *extender) interested(pod *v1.Pod) bool {
	return e.managed.Len() == 0 || e.manages(pod.Spec.Containers) || e.manages(pod.Spec.InitContainers)
}

func (e *extender) manages(containers []v1.Container) bool {
	for i := range containers {
		for _, list := range []v1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
			for name := range list {
				if e.managed.Has(string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// call posts args and decodes the answer into result.
func (e *extender) call(ctx context.Context, verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: %s: encode the question: %w", e, verb, err)
	}
	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %s: %w", e, verb, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", e, verb, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: it answers %s", e, verb, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(result); err != nil {
		return fmt.Errorf("%s: %s: its answer cannot be read: %w", e, verb, err)
	}
	return nil
}

// about returns the request for a pod and nodes; an extender that caches nodes gets their names.
func (e *extender) about(pod *v1.Pod, nodes []fwk.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Node().Name)
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &v1.NodeList{Items: make([]v1.Node, 0, len(nodes))}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n.Node())
	}
	return args
}

// filter returns the nodes that the extender accepts, in their order here, and its answer.
func (e *extender) filter(
	ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo,
) ([]fwk.NodeInfo, *extenderv1.ExtenderFilterResult, error) {
	var answer extenderv1.ExtenderFilterResult
	if err := e.call(ctx, e.config.FilterVerb, e.about(pod, nodes), &answer); err != nil {
		return nil, nil, err
	}
	if answer.Error != "" {
		return nil, nil, fmt.Errorf("%s: %s: %s", e, e.config.FilterVerb, answer.Error)
	}
	taken := sets.New[string]()
	switch {
	case e.config.NodeCacheCapable && answer.NodeNames != nil:
		taken.Insert(*answer.NodeNames...)
	case answer.Nodes != nil:
		for i := range answer.Nodes.Items {
			taken.Insert(answer.Nodes.Items[i].Name)
		}
	}
	out := make([]fwk.NodeInfo, 0, len(taken))
	for _, n := range nodes {
		if taken.Has(n.Node().Name) {
			out = append(out, n)
			taken.Delete(n.Node().Name)
		}
	}
	if len(taken) > 0 {
		return nil, nil,
			fmt.Errorf("%s: %s: it takes node %q, which it was not asked about", e, e.config.FilterVerb,
				sets.List(taken)[0])
	}
	return out, &answer, nil
}

// bind has the extender write the binding.
func (e *extender) bind(ctx context.Context, pod *v1.Pod, node string) error {
	var answer extenderv1.ExtenderBindingResult
	args := &extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}
	if err := e.call(ctx, e.config.BindVerb, args, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s: %s", e, e.config.BindVerb, answer.Error)
	}
	return nil
}
