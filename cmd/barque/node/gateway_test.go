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

func TestGatewayPorts(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		bad  bool
	}{
		{"defaults", Options{APIPort: 6443}, false},
		{"the API's", Options{APIPort: 443}, true},
		{"the kubelet's", Options{KubeletPort: 8443, Gateway: gateway.Settings{HTTPPort: 8080, HTTPSPort: 8443}}, true},
		{"one for both", Options{Gateway: gateway.Settings{HTTPPort: 8080, HTTPSPort: 8080}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.o.checkGateway(); (err != nil) != c.bad {
				t.Error(err)
			}
		})
	}
}
