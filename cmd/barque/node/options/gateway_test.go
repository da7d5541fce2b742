package options

import (
	"testing"

	"github.com/barque/barque/edge/gateway"
)

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
