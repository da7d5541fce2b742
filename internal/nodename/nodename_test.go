package nodename

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, want := range map[string]string{
		"a1": "", "a1.example.org": "", strings.Repeat("a", 63): "",
		strings.Repeat("a", 31) + "." + strings.Repeat("a", 31): "",
		strings.Repeat("a", 64):                                 "no more than 63 characters, and has 64",
		strings.Repeat("a.", 40) + "a":                          "no more than 63 characters, and has 81",
		"":                                                      "subdomain", "A1": "subdomain", "a_1": "subdomain",
	} {
		if err := Check(name); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCheckLabel(t *testing.T) {
	for label, want := range map[string]string{
		"disk=ssd": "", "example.org/disk=ssd": "", "disk=": "", "topology.kubernetes.io/zone=z": "",
		"kubernetes.io/hostname=h":  "",
		"node.kubernetes.io/pool=p": "", "x.kubelet.kubernetes.io/a=b": "", "notkubernetes.io/a=b": "",
		"barque.iox/a=b": "", "barque.io=b": "",
		"node-role.kubernetes.io/worker=":    "kubectl label node NAME node-role.kubernetes.io/worker=",
		"kubernetes.io/x=y":                  "may not give it to itself",
		"node-restriction.kubernetes.io/a=b": "may not give it to itself", "a.k8s.io/b=c": "may not give it to itself",
		"barque.io/member=": "Barque's own", "x.barque.io/a=b": "Barque's own",
		"a b=c": "label", "a=b c": "label",
	} {
		key, value, _ := strings.Cut(label, "=")
		if err := CheckLabel(key, value); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", label, err)
		}
	}
}
