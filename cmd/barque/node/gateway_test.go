package node

import (
	"testing"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/edge/gateway"
)

// TestGatewayAccount: the rooms on both sides of the API mean the same account, and its tokens
// count: it is no controller's.
func TestGatewayAccount(t *testing.T) {
	if gatewayauth.Account.Name != gateway.Account || gatewayauth.Account.Namespace != "kube-system" {
		t.Errorf("%s and %s", gatewayauth.Account, gateway.Account)
	}
	if rbac.IsController(gatewayauth.Account.Namespace, gatewayauth.Account.Name) || rbac.IsOwnUser(gatewayauth.User) {
		t.Error("no token counts for the account")
	}
	if !rbac.IsOwnUser(statusUser) {
		t.Errorf("%s is not of the control plane", statusUser)
	}
}
