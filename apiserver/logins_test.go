package apiserver

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/apiserver/logins/logintest"
)

// withLogins configures logins and authorizers as flags do.
func withLogins(t *testing.T, change func(*logins.Options, *authorizers.Options)) func(*Config) {
	t.Helper()
	lo, ao := logins.NewOptions(), authorizers.NewOptions()
	change(lo, ao)
	logger := slog.New(slog.DiscardHandler)
	l, err := logins.New(
		logins.Config{Options: lo, Server: "s1", Issuers: []string{defaultIssuer}, Audiences: []string{defaultIssuer},
			Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	a, err := authorizers.New(authorizers.Config{Options: ao, Server: "s1", Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- l.Run(ctx) }()
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return func(c *Config) { c.Logins, c.Authorizers = l, a }
}

// lead makes the server the leader, which creates the default roles and bindings.
func (c *cluster) lead(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.LeaderRoutine(ctx, c.client) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Errorf("the leader's routine: %v", err)
		}
	})
	await(t, "the default bindings count", func(ctx context.Context) (error, bool) {
		_, err := c.admin.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err, err == nil
	})
	return c
}

func (c *cluster) bearing(token string) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, QPS: -1, BearerToken: token,
			TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
}

func (c *cluster) named(t *testing.T, name string, groups ...string) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, pkix.Name{CommonName: name, Organization: groups}))
}

func whoAmI(t *testing.T, client kubernetes.Interface) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// TestLogin: a user of an issuer has the name of its claims and the rights of its groups. Tokens of
// the cluster, certificates and TokenReviews work beside it.
func TestLogin(t *testing.T) {
	issuer := logintest.NewIssuer(t)
	path := logintest.Write(t, filepath.Join(t.TempDir(), "authn.yaml"),
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"+issuer.Config()+
			"  claimMappings:\n    username: {claim: email, prefix: \"\"}\n    groups: {claim: groups, prefix: \"corp:\"}\n    extra: [{key: example.org/team, valueExpression: claims.team}]\n"+
			"  claimValidationRules: [{expression: \"claims.email_verified == true\", message: the address is not verified}]\nanonymous: {enabled: true, conditions: [{path: /readyz}]}\n")
	c := startCluster(t, withLogins(t, func(o *logins.Options, _ *authorizers.Options) { o.ConfigFile = path })).lead(t)
	token := issuer.Token(t,
		map[string]any{"email": "ann@example.org", "email_verified": true, "groups": []string{"readers"},
			"team": "red"})
	var who authenticationv1.UserInfo
	await(t, "the issuer's keys are known", func(context.Context) (err error, ok bool) {
		who, err = whoAmI(t, c.bearing(token))
		return err, err == nil
	})
	if who.Username != "ann@example.org" ||
		!slices.Equal(who.Groups, []string{"corp:readers", "system:authenticated"}) ||
		fmt.Sprint(who.Extra["example.org/team"]) != "[red]" {
		t.Errorf("they are %+v", who)
	}
	if _, err := c.bearing(token).CoreV1().Nodes().List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "readers"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "corp:readers"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the role counts", func(context.Context) (error, bool) {
		_, err := c.bearing(token).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err, err == nil
	})
	unverified := issuer.Token(t, map[string]any{"email": "eve@example.org", "email_verified": false, "team": "red"})
	if who, err := whoAmI(t, c.bearing(unverified)); !apierrors.IsUnauthorized(err) {
		t.Errorf("a broken rule: %+v, %v", who, err)
	}
	review, err := c.admin.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "ann@example.org" {
		t.Errorf("its TokenReview: %+v, %v", review.Status, err)
	}
	anonymous := c.bearing("")
	if _, err := anonymous.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
		t.Errorf("without credentials, where the file permits it: %v", err)
	}
	if _, err := anonymous.Discovery().RESTClient().Get().AbsPath("/api").DoRaw(t.Context()); !apierrors.IsUnauthorized(
		err) {
		t.Errorf("without credentials, elsewhere: %v", err)
	}
}

// TestIllWebhooksLockNobodyOut: with webhooks of logins and of authorization that hang, die or lie,
// nodes and administrators work as before, and no user gets more rights.
func TestIllWebhooksLockNobodyOut(t *testing.T) {
	liar := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			metav1.TypeMeta `json:",inline"`
			Status          map[string]any `json:"status"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status = map[string]any{"allowed": false, "denied": true, "authenticated": true,
			"user": map[string]any{"username": "eve", "groups": []string{"system:masters"}}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(liar.Close)
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	deadConfig := logintest.Kubeconfig(t, dead)
	dead.Close()
	for ill, kubeconfig := range map[string]string{"hangs": logintest.Kubeconfig(t, logintest.Hanging(t)),
		"dead": deadConfig, "lies": logintest.Kubeconfig(t, liar)} {
		t.Run(ill, func(t *testing.T) {
			path := logintest.Write(t, filepath.Join(t.TempDir(), "authz.yaml"),
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- type: Webhook\n  name: first\n  webhook: {timeout: 1s, authorizedTTL: 1ms, unauthorizedTTL: 1ms, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: "+kubeconfig+"}}\n")
			c := startCluster(t,
				withLogins(t,
					func(
						l *logins.Options, a *authorizers.Options,
					) {
						l.Webhook.ConfigFile, a.ConfigFile = kubeconfig, path
					})).lead(t)
			if _, err := c.admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("a master: %v", err)
			}
			admin := c.named(t, "ann", "barque:admins")
			await(t, "an administrator by certificate works", func(context.Context) (error, bool) {
				_, err := admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
				return err, err == nil
			})
			node := c.named(t, "system:node:n1", "system:nodes")
			if _, err := node.CoreV1().Pods("").List(t.Context(),
				metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
				t.Errorf("a node's pods: %v", err)
			}
			if _, err := node.Discovery().ServerGroups(); err != nil {
				t.Errorf("a node's discovery: %v", err)
			}
			if _, err := node.CoreV1().Secrets("kube-system").List(t.Context(),
				metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("a node's secrets: %v", err)
			}
			if _, err := c.bearing("").Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(
				t.Context()); err != nil {
				t.Errorf("a balancer's question: %v", err)
			}
			if who, err := whoAmI(t, c.bearing("made-up-"+ill)); !apierrors.IsUnauthorized(err) && err == nil {
				t.Errorf("a token that only the webhook knows: %+v", who)
			}
			if _, err := c.named(t, "bob").CoreV1().Pods("default").List(t.Context(),
				metav1.ListOptions{}); err == nil {
				t.Error("a user passed the webhook")
			}
		})
	}
}

// TestConstrainedImpersonation: as in Kubernetes 1.36 and later, where the feature is on, the right
// to act as a user can be bound to actions. It is less than the right to impersonate.
func TestConstrainedImpersonation(t *testing.T) {
	c := startCluster(t)
	role := func(name string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		if _, err := c.admin.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(name, who string) {
		t.Helper()
		if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(),
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: who}}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role("reader",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "secrets"}, Verbs: []string{"list"}})
	bind("reader", "bob")
	role("helper",
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"},
			ResourceNames: []string{"bob"}, Verbs: []string{"impersonate:user-info"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"},
			Verbs: []string{"impersonate-on:user-info:list"}})
	bind("helper", "ann")
	config := c.ca.client(t, c.host, pkix.Name{CommonName: "ann"})
	config.Impersonate.UserName = "bob"
	asBob := kubernetes.NewForConfigOrDie(config)
	await(t, "the action is permitted", func(context.Context) (error, bool) {
		_, err := asBob.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err, err == nil
	})
	if _, err := asBob.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "impersonate") {
		t.Errorf("another action, which bob may do: %v", err)
	}
	if _, err := c.named(t, "ann").CoreV1().Pods("").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("ann herself: %v", err)
	}
}
