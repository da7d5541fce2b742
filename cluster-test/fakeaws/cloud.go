// Package fakeaws is a cloud for tests: it answers the requests of AWS' cloud-controller-manager as
// Amazon's API does, in the formats of EC2 (2016-11-15) and of Elastic Load Balancing (2012-06-01).
//
// It has instances, security groups and classic load balancers. A request, filter or parameter that
// it does not know is refused and recorded, so that a test notices an answer that is incomplete. It
// checks the access key, but not the signature, and it forwards no packets. It checks the health of
// a load balancer's targets as Amazon does.
package fakeaws

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The names of everything that the cloud has from the beginning.
const (
	Region     = "eu-test-1"
	Zone       = Region + "a"
	ZoneID     = "eut1-az1"
	Network    = "vpc-0a0a0a0a"
	Subnet     = "subnet-0b0b0b0b"
	NodesGroup = "sg-0c0c0c0c" // the security group of the instances
	Cluster    = "barque"      // the cluster's ID in the tags
	AccessKey  = "AKIATESTTESTTESTTEST"
	account    = "123456789012"
)

// clusterTag marks a resource of the cluster, as the authors' documentation demands.
const clusterTag = "kubernetes.io/cluster/" + Cluster

// State is the state of an instance.
type State string

// The states of instances.
const (
	Running    State = "running"
	Stopped    State = "stopped"
	Terminated State = "terminated"
)

// codes are the numbers of the states in Amazon's API.
var codes = map[State]int{Running: 16, Stopped: 80, Terminated: 48}

// Instance is a machine of the cloud.
type Instance struct {
	ID        string
	Name      string // its private DNS name
	Type      string
	PrivateIP string
	PublicIP  string
	State     State // Running when empty
}

// PublicName is the instance's public DNS name.
func (i Instance) PublicName() string {
	return "ec2-" + strings.ReplaceAll(i.PublicIP, ".", "-") + "." + Region + ".compute.example"
}

// Cloud is safe for use by several goroutines. It implements http.Handler.
type Cloud struct {
	mu        sync.Mutex
	instances map[string]Instance // by ID
	groups    map[string]*group   // by ID
	balancers map[string]*Balancer
	made      int // resources, for their IDs
	calls     map[string]int
	unknown   []string
}

// New returns a cloud with a network and no instances.
func New() *Cloud {
	return &Cloud{
		instances: map[string]Instance{}, balancers: map[string]*Balancer{}, calls: map[string]int{},
		groups: map[string]*group{NodesGroup: {
			id: NodesGroup, name: "nodes", description: "the nodes", tags: map[string]string{clusterTag: "owned"}}},
	}
}

// Put adds an instance, or replaces the one with its ID.
func (c *Cloud) Put(i Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i.State = cmp.Or(i.State, Running)
	c.instances[i.ID] = i
}

// SetState changes the state of an instance. Load balancers lose a terminated one.
func (c *Cloud) SetState(id string, state State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.instances[id]
	i.State = state
	c.instances[id] = i
	if state == Terminated {
		for _, b := range c.balancers {
			b.Instances = without(b.Instances, id)
		}
	}
}

// Balancers returns the load balancers, by the Service in their tag.
func (c *Cloud) Balancers() map[string][]Balancer {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]Balancer{}
	for _, b := range c.balancers {
		service := b.tags["kubernetes.io/service-name"]
		all[service] = append(all[service], b.clone())
	}
	return all
}

// Groups returns the IDs of the security groups.
func (c *Cloud) Groups() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.groups))
}

// Admits reports whether the security group of the instances lets the group's members in.
func (c *Cloud) Admits(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.groups[NodesGroup].rules, func(r rule) bool { return r.group == id })
}

// Calls returns how often the action was asked for, such as DescribeInstances.
func (c *Cloud) Calls(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[action]
}

// Unknown returns the requests that this cloud cannot answer.
func (c *Cloud) Unknown() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.unknown)
}

// fault is an error as the API words it.
type fault struct{ code, message string }

func (f fault) Error() string { return f.code + ": " + f.message }

// notKnown is the fault of a request that this cloud, other than Amazon's, does not know.
func notKnown(format string, args ...any) error {
	return fault{"InvalidParameterValue", "fakeaws does not know " + fmt.Sprintf(format, args...)}
}

// api is one of the two query protocols.
type api struct {
	service, namespace string
	actions            map[string]func(c *Cloud, q query) (any, error)
	result             bool // the answer is in an element ACTIONResult
}

// apis are by version. Amazon tells its services apart by host name; the versions differ, too.
var apis = map[string]api{
	"2016-11-15": {"ec2", "http://ec2.amazonaws.com/doc/2016-11-15/", computeActions, false},
	"2012-06-01": {"elasticloadbalancing", "http://elasticloadbalancing.amazonaws.com/doc/2012-06-01/",
		balancerActions, true},
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if err := request.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q := query{request.Form}
	action := q.get("Action")
	of, ok := apis[q.get("Version")]
	body, err := any(nil), error(nil)
	c.mu.Lock()
	c.calls[action]++
	do := of.actions[action]
	switch {
	case !ok || do == nil:
		err = notKnown("the action %s of version %q", action, q.get("Version"))
	case !strings.Contains(request.Header.Get("Authorization"), "Credential="+AccessKey+"/") ||
		!strings.Contains(request.Header.Get("Authorization"), "/"+Region+"/"+of.service+"/aws4_request"):
		err = fault{"AuthFailure", "the request is not signed with the access key of this cloud"}
	default:
		body, err = do(c, q)
	}
	if f, is := errors.AsType[fault](err); is && strings.HasPrefix(f.message, "fakeaws does not know") {
		c.unknown = append(c.unknown, f.Error()+" in "+request.Form.Encode())
	}
	c.mu.Unlock()
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, of.refusal(err))
		return
	}
	if err := of.write(w, action, body); err != nil { // the client has gone
		return
	}
}

func (a api) refusal(err error) string {
	f, ok := errors.AsType[fault](err)
	if !ok {
		f = fault{"InternalError", err.Error()}
	}
	element := "<Error><Type>Sender</Type><Code>" + f.code + "</Code><Message>" + escaped(f.message) +
		"</Message></Error>"
	if a.result {
		return `<ErrorResponse xmlns="` + a.namespace + `">` + element + "<RequestId>r-0</RequestId></ErrorResponse>"
	}
	return "<Response><Errors>" + element + "</Errors><RequestID>r-0</RequestID></Response>"
}

func (a api) write(w io.Writer, action string, body any) error {
	inner := action + "Response"
	if a.result {
		inner = action + "Result"
	}
	start := xml.StartElement{Name: xml.Name{Local: inner}}
	if !a.result {
		start.Attr = []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: a.namespace}}
		return xml.NewEncoder(w).EncodeElement(body, start)
	}
	if _, err := fmt.Fprintf(w, `<%sResponse xmlns="%s">`, action, a.namespace); err != nil {
		return err
	}
	if err := xml.NewEncoder(w).EncodeElement(body, start); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "<ResponseMetadata><RequestId>r-0</RequestId></ResponseMetadata></%sResponse>", action)
	return err
}

func escaped(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // a strings.Builder takes all
	return out.String()
}

// query has the parameters of a request.
type query struct{ values url.Values }

func (q query) get(name string) string { return q.values.Get(name) }

// list returns the values of prefix.1, prefix.2 and so on.
func (q query) list(prefix string) []string {
	var all []string
	for n := 1; q.values.Has(prefix + "." + strconv.Itoa(n)); n++ {
		all = append(all, q.get(prefix+"."+strconv.Itoa(n)))
	}
	return all
}

// each calls f with prefix.1., prefix.2. and so on, as long as a parameter begins with that.
func (q query) each(prefix string, f func(prefix string) error) error {
	for n := 1; ; n++ {
		at := prefix + "." + strconv.Itoa(n) + "."
		found := false
		for name := range q.values {
			found = found || strings.HasPrefix(name, at)
		}
		if !found {
			return nil
		}
		if err := f(at); err != nil {
			return err
		}
	}
}

// tags returns the tags below prefix.
func (q query) tags(prefix string) map[string]string {
	all := map[string]string{}
	_ = q.each(prefix, func(at string) error { // it returns no error
		all[q.get(at+"Key")] = q.get(at + "Value")
		return nil
	})
	return all
}

// filters returns the values of each filter of EC2.
func (q query) filters() map[string][]string {
	all := map[string][]string{}
	_ = q.each("Filter", func(at string) error { // it returns no error
		all[q.get(at+"Name")] = q.list(at + "Value")
		return nil
	})
	return all
}

// passes reports whether a resource passes all filters. have returns its values for a filter, and
// false for a filter that it does not know.
func passes(filters map[string][]string, have func(name string) ([]string, bool)) (bool, error) {
	for name, wanted := range filters {
		values, known := have(name)
		if !known {
			return false, notKnown("the filter %s", name)
		}
		if !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(wanted, v) }) {
			return false, nil
		}
	}
	return true, nil
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return s == one })
}

type tag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func tagsOf(m map[string]string) []tag {
	var all []tag
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, tag{key, m[key]})
	}
	return all
}
