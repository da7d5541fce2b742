package apiserver

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// TestReviewsOfTokens demands that TokenReview and the bearer's own SelfSubjectReview agree for
// each kind of token: the same name, UID, groups and extra fields, system:authenticated among
// the groups.
func TestReviewsOfTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte(`static-token,sam,sam-uid,"one,two"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, ctx := startCluster(t, func(cfg *Config) { cfg.TokenFile = file }), t.Context()
	if err := c.ensure(ctx, c.client); err != nil {
		t.Fatal(err)
	}
	account := must(c.admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))(t)
	issued := must(
		c.admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{}))(t)
	must(c.admin.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true"},
	}, metav1.CreateOptions{}))(t)

	review := func(spec authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
		t.Helper()
		return must(
			c.admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: spec},
				metav1.CreateOptions{}))(t).Status
	}
	for _, kind := range []struct {
		what, token, name, uid string
		groups                 []string
	}{
		{"of a service account", issued.Status.Token, "system:serviceaccount:default:robot", string(account.UID),
			[]string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}},
		{"of the token file", "static-token", "sam", "sam-uid", []string{"one", "two", "system:authenticated"}},
		{"of a node that joins", "abcdef.0123456789abcdef", "system:bootstrap:abcdef", "",
			[]string{"system:bootstrappers", "system:authenticated"}},
	} {
		t.Run(kind.what, func(t *testing.T) {
			got := review(authenticationv1.TokenReviewSpec{Token: kind.token})
			if !got.Authenticated || got.Error != "" || !slices.Equal(got.Audiences, []string{defaultIssuer}) {
				t.Fatalf("review: %+v", got)
			}
			if u := got.User; u.Username != kind.name || u.UID != kind.uid || !slices.Equal(u.Groups, kind.groups) {
				t.Errorf("review says %+v, want %s, UID %q, in %q", u, kind.name, kind.uid, kind.groups)
			}
			bearer := kubernetes.NewForConfigOrDie(&restclient.Config{
				Host: c.host, BearerToken: kind.token, TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
			self := must(
				bearer.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
					metav1.CreateOptions{}))(t)
			if !reflect.DeepEqual(self.Status.UserInfo, got.User) {
				t.Errorf("the bearer is told that it is %+v, and a review says %+v", self.Status.UserInfo, got.User)
			}
			if self.CreationTimestamp.IsZero() {
				t.Error("the bearer's own review does not say when it was made")
			}
			if got := review(
				authenticationv1.TokenReviewSpec{Token: kind.token,
					Audiences: []string{"elsewhere"}}); got.Authenticated || got.User.Username != "" {
				t.Errorf("for another audience: %+v", got)
			}
		})
	}
	for _, bad := range []string{"nobody's", " ", " static-token"} {
		if got := review(authenticationv1.TokenReviewSpec{Token: bad}); got.Authenticated || got.User.Username != "" {
			t.Errorf("review of %q: %+v", bad, got)
		}
	}
	if got := review(authenticationv1.TokenReviewSpec{Token: "nobody's"}); got.Error != "invalid bearer token" {
		t.Errorf("review of a token of nobody: %+v", got)
	}
}
