package fakeaws

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

const (
	compute   = "2016-11-15"
	balancing = "2012-06-01"
)

// caller asks a cloud as an SDK does.
type caller struct {
	testing.TB
	cloud *Cloud
}

// call returns the answer to an action with parameters NAME=VALUE.
func (c caller) call(version, action string, parameters ...string) string {
	c.Helper()
	form := url.Values{"Version": {version}, "Action": {action}}
	for _, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		form.Add(name, value)
	}
	request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+AccessKey+"/20260101/"+Region+"/"+
		apis[version].service+"/aws4_request, SignedHeaders=host, Signature=0")
	recorder := httptest.NewRecorder()
	c.cloud.ServeHTTP(recorder, request)
	body, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		c.Fatal(err)
	}
	return string(body)
}

func (c caller) want(answer string, parts ...string) {
	c.Helper()
	for _, part := range parts {
		if !strings.Contains(answer, part) {
			c.Errorf("the answer lacks %s:\n%s", part, answer)
		}
	}
}

func TestInstances(t *testing.T) {
	c := caller{t, New()}
	c.cloud.Put(Instance{ID: "i-1", Name: "one", PrivateIP: "192.0.2.1", PublicIP: "203.0.113.1"})
	byName := []string{"Filter.1.Name=private-dns-name", "Filter.1.Value.1=one"}
	c.want(c.call(compute, "DescribeInstances", byName...), "<instanceId>i-1</instanceId>",
		"<ipAddress>203.0.113.1</ipAddress>", "<instanceState><code>16</code><name>running</name></instanceState>")
	c.cloud.SetState("i-1", Terminated)
	if out := c.call(compute, "DescribeInstances", byName...); strings.Contains(out, "i-1") {
		t.Errorf("a terminated instance has its name:\n%s", out)
	}
	c.want(c.call(compute, "DescribeInstances", "InstanceId.1=i-1"), "<name>terminated</name>")
	c.want(c.call(compute, "DescribeInstances", "InstanceId.1=i-2"), "<Code>InvalidInstanceID.NotFound</Code>")
}

func TestSecurityGroups(t *testing.T) {
	c := caller{t, New()}
	create := []string{"GroupName=web", "GroupDescription=of web", "VpcId=" + Network,
		"TagSpecification.1.Tag.1.Key=k", "TagSpecification.1.Tag.1.Value=v"}
	c.want(c.call(compute, "CreateSecurityGroup", create...), "<groupId>sg-00000001</groupId>")
	c.want(c.call(compute, "CreateSecurityGroup", create...), "<Code>InvalidGroup.Duplicate</Code>")
	admit := []string{"GroupId=" + NodesGroup, "IpPermissions.1.IpProtocol=-1",
		"IpPermissions.1.Groups.1.GroupId=sg-00000001"}
	c.want(c.call(compute, "AuthorizeSecurityGroupIngress", admit...), "<return>true</return>")
	c.want(c.call(compute, "AuthorizeSecurityGroupIngress", admit...), "<Code>InvalidPermission.Duplicate</Code>")
	c.want(c.call(compute, "DescribeSecurityGroups", "Filter.1.Name=ip-permission.group-id",
		"Filter.1.Value.1=sg-00000001"), "<groupId>"+NodesGroup+"</groupId>")
	c.want(c.call(compute, "DeleteSecurityGroup", "GroupId=sg-00000001"), "<Code>DependencyViolation</Code>")
	c.want(c.call(compute, "RevokeSecurityGroupIngress", admit...), "<return>true</return>")
	c.want(c.call(compute, "DeleteSecurityGroup", "GroupId=sg-00000001"), "<return>true</return>")
}

func TestLoadBalancers(t *testing.T) {
	c := caller{t, New()}
	c.cloud.Put(Instance{ID: "i-1", Name: "one", PrivateIP: "192.0.2.1"})
	c.want(c.call(balancing, "DescribeLoadBalancers", "LoadBalancerNames.member.1=b"),
		"<Code>LoadBalancerNotFound</Code>")
	c.want(c.call(balancing, "CreateLoadBalancer", "LoadBalancerName=b", "Subnets.member.1="+Subnet,
		"Listeners.member.1.LoadBalancerPort=80", "Listeners.member.1.Protocol=tcp",
		"Listeners.member.1.InstancePort=30080", "Listeners.member.1.InstanceProtocol=tcp",
		"Tags.member.1.Key=kubernetes.io/service-name", "Tags.member.1.Value=default/web"),
		"<CreateLoadBalancerResult><DNSName>b-1."+Region+".elb.amazonaws.com</DNSName></CreateLoadBalancerResult>")
	register := []string{"LoadBalancerName=b", "Instances.member.1.InstanceId=i-1"}
	c.want(c.call(balancing, "RegisterInstancesWithLoadBalancer", register...), "<InstanceId>i-1</InstanceId>")
	c.want(c.call(balancing, "DescribeLoadBalancers", "LoadBalancerNames.member.1=b"),
		"<InstanceId>i-1</InstanceId>", "<InstancePort>30080</InstancePort>", "<Protocol>TCP</Protocol>",
		"<Target>TCP:30080</Target>")
	if made := c.cloud.Balancers()["default/web"]; len(made) != 1 || len(made[0].Instances) != 1 {
		t.Errorf("the load balancers are %+v", made)
	}
	c.cloud.SetState("i-1", Terminated)
	c.want(c.call(balancing, "RegisterInstancesWithLoadBalancer", register...), "<Code>InvalidInstance</Code>")
	c.call(balancing, "DeleteLoadBalancer", "LoadBalancerName=b")
	if made := c.cloud.Balancers(); len(made) > 0 {
		t.Errorf("the load balancers are %+v", made)
	}
}

// What the cloud does not know is refused, and recorded, so that no test passes by a silent gap.
func TestUnknownRequests(t *testing.T) {
	c := caller{t, New()}
	c.cloud.Put(Instance{ID: "i-1", Name: "one"})
	c.want(c.call(compute, "DescribeVolumes"), "<Errors><Error>", "<Code>InvalidParameterValue</Code>")
	c.want(c.call(compute, "DescribeInstances", "Filter.1.Name=color", "Filter.1.Value.1=red"),
		"<Code>InvalidParameterValue</Code>")
	if got := c.cloud.Unknown(); len(got) != 2 || !strings.Contains(got[0], "DescribeVolumes") {
		t.Errorf("recorded: %q", got)
	}
	recorder := httptest.NewRecorder()
	c.cloud.ServeHTTP(recorder,
		httptest.NewRequest(http.MethodPost, "/?Version="+compute+"&Action=DescribeInstances", nil))
	if recorder.Code != http.StatusBadRequest || !strings.Contains(recorder.Body.String(), "AuthFailure") {
		t.Errorf("a request without credentials: %d %s", recorder.Code, recorder.Body)
	}
}
