package subresources

import (
	"context"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestMaySign(t *testing.T) {
	old := &certificatesv1.PodCertificateRequest{
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/a"}}
	signed := old.DeepCopy()
	signed.Status.CertificateChain = "x"
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "eve"})
	for signer, want := range map[string]bool{"example.com/a": true, "example.com/*": true, "example.com/b": false,
		"": false} {
		authz := authorizer.AuthorizerFunc(
			func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetUser().GetName() == "eve" && a.GetVerb() == "sign" &&
					a.GetAPIGroup() == "certificates.k8s.io" &&
					a.GetResource() == "signers" && a.GetName() == signer {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
		if errs := MaySign(ctx, authz, signed, old); (len(errs) == 0) != want {
			t.Errorf("who may sign for %q: %v", signer, errs)
		}
		if errs := MaySign(ctx, authz, old, old); len(errs) > 0 {
			t.Errorf("no change: %v", errs)
		}
		if errs := MaySign(t.Context(), authz, signed, old); len(errs) != 1 {
			t.Errorf("nobody: %v", errs)
		}
	}
}
