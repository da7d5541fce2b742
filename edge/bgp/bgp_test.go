package bgp

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/edge/pool"
)

// The definition describes just the fields that are read.
func TestDefinition(t *testing.T) {
	var d apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(Definition, &d); err != nil {
		t.Fatal(err)
	}
	if got := d.Spec.Group + "/" + d.Spec.Versions[0].Name + " " +
		d.Spec.Names.Plural; got != Resource.GroupVersion().String()+" "+Resource.Resource {
		t.Errorf("it defines %s", got)
	}
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	for i := range reflect.TypeFor[Spec]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[Spec]().Field(i).Tag.Get("json"), ",")
		if _, ok := spec[name]; !ok {
			t.Errorf("the definition lacks %s", name)
		}
		delete(spec, name)
	}
	for name := range spec {
		t.Errorf("nothing reads %s", name)
	}
}

func object(name string, change func(*Spec)) *Object {
	o := &Object{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: Spec{Address: "192.0.2.254", AS: 64512, LocalAS: 64513}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

func TestParse(t *testing.T) {
	p := parse(object("r", nil))
	if p.fault != nil || p.Address.String() != "192.0.2.254:179" || p.HoldTime != 9*time.Second ||
		p.RestartTime != time.Minute || p.TTL != 0 || p.Source.IsValid() || !p.nodes.Empty() {
		t.Errorf("the defaults are %+v", p)
	}
	p = parse(object("r", func(s *Spec) {
		*s = Spec{Address: "2001:db8::1", Port: 1179, AS: 1, LocalAS: 4294967294, PasswordSecret: "x",
			HoldTimeSeconds: 3, RestartTimeSeconds: ptr.To[int32](0), EBGPMultihop: 3, SourceAddress: "2001:db8::7"}
	}))
	if p.fault != nil || p.Address.String() != "[2001:db8::1]:1179" || p.AS != 1 || p.LocalAS != 4294967294 ||
		p.HoldTime != 3*time.Second || p.RestartTime != 0 || p.TTL != 3 || p.Source.String() != "2001:db8::7" ||
		p.secret != "x" {
		t.Errorf("all fields are %+v", p)
	}
	for want, change := range map[string]func(*Spec){
		`address: "x" is not the address of another machine`:            func(s *Spec) { s.Address = "x" },
		`address: "127.0.0.1" is not the address of another machine`:    func(s *Spec) { s.Address = "127.0.0.1" },
		`address: "fe80::1%eth0" is not the address of another machine`: func(s *Spec) { s.Address = "fe80::1%eth0" },
		"port: 70000 is none":                                             func(s *Spec) { s.Port = 70000 },
		"as: 0 is no number of an autonomous system":                      func(s *Spec) { s.AS = 0 },
		"localAS: 4294967295 is no number of an autonomous system":        func(s *Spec) { s.LocalAS = 4294967295 },
		"holdTimeSeconds: 2 is not between 3 and 65535":                   func(s *Spec) { s.HoldTimeSeconds = 2 },
		"restartTimeSeconds: 4096 is not between 0 and 4095":              func(s *Spec) { s.RestartTimeSeconds = ptr.To[int32](4096) },
		"ebgpMultihop: 2; want up to 255 for a peer of another AS":        func(s *Spec) { s.EBGPMultihop, s.AS = 2, s.LocalAS },
		`sourceAddress: "::1" is no address of the family of 192.0.2.254`: func(s *Spec) { s.SourceAddress = "::1" },
		`nodeSelector: "x" is not a valid label selector operator`:        func(s *Spec) { s.NodeSelector = wrongSelector },
	} {
		if got := parse(object("r", change)).fault; got == nil || got.Error() != want {
			t.Errorf("got  %v\nwant %s", got, want)
		}
	}
}

var wrongSelector = &metav1.LabelSelector{
	MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}

// The example has a peer that can be used, and a pool that is announced to it.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/bgp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		kinds[kind.Kind] = true
		switch kind.Kind {
		case "BGPPeer":
			var o Object
			if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			if p := parse(&o); p.fault != nil || p.secret == "" {
				t.Errorf("the peer is %+v", p)
			}
		case "AddressPool":
			o := &pool.Object{}
			if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
				t.Fatal(err)
			}
			j := pool.Judge([]*pool.Object{o}, nil)[0]
			if a := j.Pool.Announcing; j.Reason != pool.IsReady || a.ARP || !a.BGP || len(a.Communities) == 0 {
				t.Errorf("the pool is %+v", j)
			}
		}
	}
	if len(kinds) != 3 {
		t.Errorf("the example has %v", kinds)
	}
}
