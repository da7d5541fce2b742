package apiserver

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/fairness"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/internal/clusterusers"
)

// answerTo requests a path, as the user of a configuration.
func answerTo(ctx context.Context, config *restclient.Config, path string) (*http.Response, error) {
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res, err
}

// schemaOf returns the FlowSchema of an answered request.
func schemaOf(r *http.Response) string {
	return r.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
}

// TestFairness: requests have the levels of upstream, and a client that takes all places of a level
// keeps no other level from its own.
func TestFairness(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	flood, drain := make(chan struct{}, 40), make(chan struct{})
	c := startCluster(t, func(cfg *Config) {
		cfg.Limits = &Limits{Fairness: true, InFlight: 10}
		// A path that everybody may read.
		cfg.Extra = map[string]http.Handler{"/openapi/hang": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			entered <- struct{}{}
			<-release
		}), "/openapi/flood": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			flood <- struct{}{}
			<-drain
		})}
	})
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the authorizer knows the default roles", func(context.Context) error {
		if !c.defaults() {
			return errNotBootstrapped
		}
		return nil
	})
	t.Run("Places", func(t *testing.T) { testPlaces(t, c) })
	t.Run("Flood", func(t *testing.T) { testFlood(t, c, flood, drain) })
	t.Run("Level", func(t *testing.T) { testLevel(t, c, entered, release) })
}

func testPlaces(t *testing.T, c *cluster) {
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"
	accounts := func(namespace string) []string {
		return serviceaccount.MakeGroupNames(namespace)
	}
	type place struct {
		name   string
		groups []string
		path   string
		want   string
	}
	places := []place{
		{user.APIServerUser, []string{user.SystemPrivilegedGroup}, "/api/v1/pods", "exempt"},
		{user.KubeControllerManager, nil, "/api/v1/pods", "kube-controller-manager"},
		{user.KubeControllerManager, nil, leases, "system-leader-election"},
		{user.KubeScheduler, nil, "/api/v1/pods", "kube-scheduler"},
		{"system:node:a", []string{user.NodesGroup}, "/api/v1/nodes/a", "system-node-high"},
		{"system:node:a", []string{user.NodesGroup}, "/api/v1/pods", "system-nodes"},
		{"system:serviceaccount:kube-system:a", accounts("kube-system"), "/api/v1/pods",
			"kube-system-service-accounts"},
		{"system:serviceaccount:default:a", accounts("default"), "/api/v1/pods", "service-accounts"},
		{"ann", nil, "/api/v1/pods", "global-default"},
		{"ann", nil, "/readyz", "probes"},
		{clusterusers.ServerClient, []string{clusterusers.ServerClients}, "/barque/v1/diagnosis", "barque-servers"},
		// it has no right there
		{clusterusers.ServerClient, []string{clusterusers.ServerClients}, "/api/v1/pods", "global-default"},
	}
	for _, name := range rbac.ControlPlane() {
		if namespace, _, err := serviceaccount.SplitUsername(name); err == nil {
			places = append(places, place{name, accounts(namespace), "/api/v1/pods", "kube-system-service-accounts"})
		}
	}
	for _, p := range places {
		schema := must(c.admin.FlowcontrolV1().FlowSchemas().Get(t.Context(), p.want, metav1.GetOptions{}))(t)
		config := c.LoopbackConfigAs(p.name, p.groups...)
		eventually(t, p.name+" at "+p.path, func(ctx context.Context) error { // when the server has read the schemas
			res, err := answerTo(ctx, config, p.path)
			if err == nil && schemaOf(res) != string(schema.UID) {
				err = fmt.Errorf("not by the schema %s", p.want)
			}
			return err
		})
	}
	eventually(t, "every schema tells that its level exists", func(ctx context.Context) error {
		list, err := c.admin.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			if len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Status != flowcontrolv1.ConditionFalse {
				return fmt.Errorf("%s: %+v", s.Name, s.Status.Conditions)
			}
		}
		return nil
	})
	before := c.newest(t)
	if err := fairness.Ensure(t.Context(), c.client, c.informers); err != nil {
		t.Fatal(err)
	}
	if after := c.newest(t); !maps.Equal(before, after) {
		t.Errorf("what was right already has been written: %v, then %v", before, after)
	}
}

// newest returns the versions of all schemas and levels.
func (c *cluster) newest(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, s := range must(c.admin.FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{}))(t).Items {
		versions["schema "+s.Name] = s.ResourceVersion
	}
	for _, l := range must(
		c.admin.FlowcontrolV1().PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{}))(t).Items {
		versions["level "+l.Name] = l.ResourceVersion
	}
	return versions
}

// testFlood: users that take all places of their level, and all that it may borrow, leave the
// controllers and the scheduler theirs.
func testFlood(t *testing.T, c *cluster, entered <-chan struct{}, release chan<- struct{}) {
	let := sync.OnceFunc(func() { close(release) })
	var wg sync.WaitGroup
	defer wg.Wait()
	defer let()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // a request that waits in a queue leaves it
	for i := range 40 {
		flood := c.ca.client(t, c.host, pkix.Name{CommonName: fmt.Sprintf("user%d", i)})
		wg.Go(func() { _, _ = answerTo(ctx, flood, "/openapi/flood") }) // the flood's answers are of no interest
	}
	<-entered
	var level string
	eventually(t, "the level of users is full", func(ctx context.Context) error {
		body, err := c.admin.Discovery().RESTClient().Get().AbsPath(
			"/debug/api_priority_and_fairness/dump_priority_levels").DoRaw(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(body)) {
			// PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, …
			if cells := strings.Split(line, ","); strings.TrimSpace(cells[0]) == "global-default" {
				if level = line; strings.TrimSpace(cells[4]) != "0" {
					return nil
				}
			}
		}
		return fmt.Errorf("no request waits: %s", level)
	})
	for _, name := range rbac.ControlPlane() {
		res, err := answerTo(ctx, c.LoopbackConfigAs(name, rbac.GroupsOf(name)...), "/api/v1/namespaces/default/pods/x")
		if err != nil || res.StatusCode == http.StatusTooManyRequests {
			t.Errorf("%s: %v, %v (%s)", name, res, err, level)
		}
	}
}

func testLevel(t *testing.T, c *cluster, entered <-chan struct{}, release chan<- struct{}) {
	ctx, flows := t.Context(), c.admin.FlowcontrolV1()
	schema := must(flows.FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"},
			MatchingPrecedence:         700,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{
					{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "ann"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{
					{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}, metav1.CreateOptions{}))(t)
	dangles := func(want flowcontrolv1.ConditionStatus) func(context.Context) error {
		return func(ctx context.Context) error {
			is, err := flows.FlowSchemas().Get(ctx, schema.Name, metav1.GetOptions{})
			if err == nil && (len(is.Status.Conditions) != 1 || is.Status.Conditions[0].Status != want) {
				err = fmt.Errorf("conditions %+v, want %s", is.Status.Conditions, want)
			}
			return err
		}
	}
	eventually(t, "a schema without its level dangles", dangles(flowcontrolv1.ConditionTrue))
	must(flows.PriorityLevelConfigurations().Create(ctx, &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To[int32](1), BorrowingLimitPercent: ptr.To[int32](0),
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			}},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "a schema with its level does not dangle", dangles(flowcontrolv1.ConditionFalse))

	ann := c.ca.client(t, c.host, pkix.Name{CommonName: "ann"})
	version := func(config *restclient.Config, status int) func(context.Context) error {
		return func(ctx context.Context) error {
			res, err := answerTo(ctx, config, "/version")
			if err == nil && res.StatusCode != status {
				err = fmt.Errorf("%s, want %d", res.Status, status)
			}
			if err == nil && config == ann && schemaOf(res) != string(schema.UID) {
				err = fmt.Errorf("not by the schema %s", schema.Name)
			}
			return err
		}
	}
	eventually(t, "the server has read the schema", version(ann, http.StatusOK))
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	hangs := make(chan error, 1)
	go func() { // ends with release
		_, err := answerTo(ctx, ann, "/openapi/hang")
		hangs <- err
	}()
	select {
	case <-entered:
	case err := <-hangs:
		t.Fatalf("a request that hangs has an answer: %v", err)
	}
	if err := version(ann, http.StatusTooManyRequests)(ctx); err != nil {
		t.Errorf("a second request of ann: %v", err)
	}
	if err := version(c.ca.client(t, c.host, pkix.Name{CommonName: "bob"}), http.StatusOK)(ctx); err != nil {
		t.Errorf("a request of somebody else: %v", err)
	}
	let()
	if err := <-hangs; err != nil {
		t.Error(err)
	}
	eventually(t, "there is a place for ann again", version(ann, http.StatusOK))
}

// TestWithoutFairness: plain limits know no schemas.
func TestWithoutFairness(t *testing.T) {
	c := startCluster(t, func(cfg *Config) { cfg.Limits = &Limits{InFlight: 400} })
	res, err := answerTo(t.Context(), c.LoopbackConfig(), "/version")
	if err != nil || res.StatusCode != http.StatusOK || schemaOf(res) != "" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestLimitsCheck(t *testing.T) {
	for limits, good := range map[Limits]bool{
		DefaultLimits():                        true,
		{}:                                     true,
		{InFlight: -1, MutatingInFlight: 5}:    false,
		{InFlight: 5, MutatingInFlight: -1}:    false,
		{Fairness: true}:                       false,
		{Fairness: true, MutatingInFlight: 10}: true,
	} {
		if err := limits.Check(); (err == nil) != good {
			t.Errorf("%+v: %v", limits, err)
		}
	}
}

// BenchmarkRequest is the way of a read through the whole chain, without a network: by priority
// levels, and by plain limits.
func BenchmarkRequest(b *testing.B) {
	for name, limits := range map[string]Limits{"fairness": DefaultLimits(),
		"limits": {InFlight: 400, MutatingInFlight: 200}} {
		b.Run(name, func(b *testing.B) {
			c := startCluster(b, func(cfg *Config) { cfg.Limits = &limits })
			if err := c.ensure(b.Context(), c.client); err != nil {
				b.Fatal(err)
			}
			must(
				c.admin.CoreV1().ConfigMaps("default").Create(b.Context(),
					configMap("read", map[string]string{"a": "1"}), metav1.CreateOptions{}))(b)
			bearer := c.LoopbackConfigAs("system:serviceaccount:kube-system:generic-garbage-collector",
				serviceaccount.MakeGroupNames("kube-system")...).BearerToken
			handler := c.chain.aggregator.GenericAPIServer.Handler
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/read", nil)
				r.Header.Set("Authorization", "Bearer "+bearer)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatalf("%d: %s", w.Code, w.Body)
				}
			}
		})
	}
}
