package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/barque/barque/apiserver/switches"
)

// TestGatesAct: each gate that an operator may set makes a difference that a client sees.
func TestGatesAct(t *testing.T) {
	seen := map[featuregate.Feature]func(*testing.T, *cluster) bool{
		features.APIResponseCompression:            compresses,
		features.AllowParsingUserUIDFromCertAuth:   takesUIDOfCertificate,
		features.ConstrainedImpersonation:          impersonatesByVerb,
		features.MutatingAdmissionPolicy:           mutatesByPolicy,
		features.ShardedListAndWatch:               shards,
		features.StorageVersionHash:                hashesVersions,
		features.UnauthenticatedHTTP2DOSMitigation: leavesStrangers,
		features.WatchList:                         watchesLists,
	}
	var names []string
	for gate := range seen {
		names = append(names, string(gate))
	}
	slices.Sort(names)
	if can := switches.Settable(); !slices.Equal(names, can) {
		t.Errorf("tested are %q, and to be set are %q", names, can)
	}
	for gate, acts := range seen {
		for _, on := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s=%t", gate, on), func(t *testing.T) {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
				c := startCluster(t)
				withDefaultNamespace(t, c)
				if acts(t, c) != on {
					t.Errorf("it acts: %t", !on)
				}
			})
		}
	}
}

func compresses(t *testing.T, c *cluster) bool {
	must(
		c.admin.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "big"},
				Data: map[string]string{"k": strings.Repeat("x", 200<<10)}}, metav1.CreateOptions{}))(t)
	return !strings.Contains(string(c.body(t, "/api/v1/namespaces/default/configmaps", "Accept-Encoding", "gzip")),
		"xxxxx")
}

// body returns the body of an answer as it was sent.
func (c *cluster) body(t *testing.T, path, header, value string) []byte {
	t.Helper()
	code, body := c.raw(t, path, http.Header{header: {value}})
	if code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, code, body)
	}
	return body
}

func takesUIDOfCertificate(t *testing.T, c *cluster) bool {
	uid := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2},
		Value: "of-the-certificate"}
	client := kubernetes.NewForConfigOrDie(
		c.ca.client(t, c.host,
			pkix.Name{CommonName: "ann", Organization: []string{"system:masters"},
				ExtraNames: []pkix.AttributeTypeAndValue{uid}}))
	review := must(
		client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{}))(t)
	return review.Status.UserInfo.UID == "of-the-certificate"
}

func impersonatesByVerb(t *testing.T, c *cluster) bool {
	rights := map[string][]rbacv1.PolicyRule{
		"bob": {{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
		"ann": {
			{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"bob"},
				Verbs: []string{"impersonate:user-info"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"impersonate-on:user-info:list"}},
		},
	}
	for name, rules := range rights {
		meta := metav1.ObjectMeta{Name: name}
		must(
			c.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
				metav1.CreateOptions{}))(t)
		must(
			c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(),
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta,
					RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
					Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}},
				metav1.CreateOptions{}))(t)
		await(t, "the rights of "+name, func(ctx context.Context) (error, bool) {
			of := rules[len(rules)-1]
			review, err := c.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx,
				&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User: name,
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: of.Verbs[0],
						Resource: of.Resources[0]}}}, metav1.CreateOptions{})
			return err, err == nil && review.Status.Allowed
		})
	}
	config := c.ca.client(t, c.host, pkix.Name{CommonName: "ann"})
	config.Impersonate.UserName = "bob"
	_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil && !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	return err == nil
}

func mutatesByPolicy(t *testing.T, c *cluster) bool {
	policies, meta := c.admin.AdmissionregistrationV1(), metav1.ObjectMeta{Name: "marks"}
	must(
		policies.MutatingAdmissionPolicies().Create(t.Context(),
			&admissionv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.MutatingAdmissionPolicySpec{
				MatchConstraints: configMapWrites(), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				Mutations: []admissionv1.Mutation{
					{PatchType: admissionv1.PatchTypeJSONPatch,
						JSONPatch: &admissionv1.JSONPatch{
							Expression: `[JSONPatch{op: "add", path: "/data/marked", value: "yes"}]`}}},
			}}, metav1.CreateOptions{}))(t)
	must(
		policies.MutatingAdmissionPolicyBindings().Create(t.Context(),
			&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta,
				Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name}}, metav1.CreateOptions{}))(
		t)
	// This one is made later, and reports whether the other one has acted. It may act first.
	on := utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy)
	must(
		policies.ValidatingAdmissionPolicies().Create(t.Context(),
			&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: configMapWrites(),
				Validations: []admissionv1.Validation{
					{Expression: "false", MessageExpression: `has(object.data.marked) ? "marked" : "unmarked"`}},
			}}, metav1.CreateOptions{}))(t)
	must(
		policies.ValidatingAdmissionPolicyBindings().Create(t.Context(),
			&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta,
				Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: meta.Name,
					ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{}))(t)
	marked := false
	await(t, "the later policy refuses a write", func(ctx context.Context) (error, bool) {
		_, err := c.admin.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}, Data: map[string]string{"own": ""}},
			metav1.CreateOptions{})
		if err == nil {
			return errors.New("it was accepted"), false
		}
		marked = strings.HasSuffix(err.Error(), ": marked")
		return err, marked || !on && strings.HasSuffix(err.Error(), ": unmarked")
	})
	return marked
}

// shards lists two halves in each form.
func shards(t *testing.T, c *cluster) bool {
	const total = 40
	for i := range total {
		must(
			c.admin.CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}, metav1.CreateOptions{}))(
			t)
	}
	json := c.ca.client(t, c.host, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	proto := restclient.CopyConfig(json)
	json.ContentType, proto.ContentType = "application/json", "application/vnd.kubernetes.protobuf"
	sharded := 0
	for _, config := range []*restclient.Config{json, proto} {
		client, halves := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default"), 0
		for _, half := range []string{"'0x0000000000000000', '0x8000000000000000'",
			"'0x8000000000000000', '0x10000000000000000'"} {
			list := must(
				client.List(t.Context(),
					metav1.ListOptions{ShardSelector: "shardRange(object.metadata.uid, " + half + ")"}))(t)
			halves += len(list.Items)
			if len(list.Items) < total {
				sharded++
			}
		}
		if halves != total && halves != 2*total {
			t.Errorf("%s: both halves have %d objects of %d", config.ContentType, halves, total)
		}
	}
	if sharded != 0 && sharded != 4 {
		t.Errorf("%d lists of 4 were sharded", sharded)
	}
	return sharded > 0
}

func hashesVersions(t *testing.T, c *cluster) bool {
	list := must(c.admin.Discovery().ServerResourcesForGroupVersion("v1"))(t)
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.StorageVersionHash != "" })
}

// leavesStrangers reports whether a second request without valid credentials needs a connection of
// its own.
func leavesStrangers(t *testing.T, c *cluster) bool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	reused := false
	for range 2 {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		req := must(
			http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet,
				c.host+"/api/v1/pods", http.NoBody))(t)
		req.Header.Set("Authorization", "Bearer wrong")
		res := must((&http.Client{Transport: transport}).Do(req))(t)
		if res.StatusCode != http.StatusUnauthorized || res.ProtoMajor != 2 {
			t.Fatalf("%s by HTTP/%d", res.Status, res.ProtoMajor)
		}
		var body bytes.Buffer
		must(body.ReadFrom(res.Body))(t)
		_ = res.Body.Close()
	}
	return !reused
}

func watchesLists(t *testing.T, c *cluster) bool {
	all := true
	w, err := c.admin.CoreV1().ConfigMaps("").Watch(t.Context(),
		metav1.ListOptions{SendInitialEvents: &all, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			AllowWatchBookmarks: true})
	if err == nil {
		w.Stop()
		return true
	}
	if !apierrors.IsInvalid(err) {
		t.Fatal(err)
	}
	return false
}

// TestVersionsThatAreOff: a version that is off is found nowhere, its objects are served in the
// other one, and all versions that can be named are served otherwise.
func TestVersionsThatAreOff(t *testing.T) {
	served := func(c *cluster) (out []schema.GroupVersion) {
		_, lists, err := c.admin.Discovery().ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			out = append(out, must(schema.ParseGroupVersion(list.GroupVersion))(t))
		}
		return out
	}
	all := served(startCluster(t))
	for _, gv := range Versions() {
		if !slices.Contains(all, gv) && gv != metricsVersion { // which needs kubelets
			t.Errorf("%s may be named and is not served", gv)
		}
	}
	for _, gv := range all {
		if !slices.Contains(Versions(), gv) {
			t.Errorf("%s is served and may not be named", gv)
		}
	}
	c := startCluster(t, func(cfg *Config) {
		cfg.Versions = switches.Versions{"autoscaling/v1": "false", "events.k8s.io/v1": "0", "autoscaling/v2": "true"}
	})
	left := served(c)
	for _, gone := range []string{"autoscaling/v1", "events.k8s.io/v1"} {
		if slices.Contains(left, must(schema.ParseGroupVersion(gone))(t)) {
			t.Errorf("discovery has %s", gone)
		}
		if code, body := c.raw(t, "/apis/"+gone, nil); code != http.StatusNotFound {
			t.Errorf("/apis/%s: %d %s", gone, code, body)
		}
		for _, doc := range []string{"/openapi/v2", "/openapi/v3"} {
			if _, body := c.raw(t, doc, nil); bytes.Contains(body, []byte("apis/"+gone)) {
				t.Errorf("%s has %s", doc, gone)
			}
		}
	}
	if len(left) != len(all)-2 {
		t.Errorf("%d versions of %d are left", len(left), len(all))
	}
	for _, path := range []string{"/apis/autoscaling/v2/horizontalpodautoscalers", "/api/v1/events"} {
		if code, body := c.raw(t, path, nil); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
