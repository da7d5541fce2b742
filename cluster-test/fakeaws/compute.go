package fakeaws

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// computeActions are those of EC2.
var computeActions = map[string]func(c *Cloud, q query) (any, error){
	"DescribeInstances":             (*Cloud).describeInstances,
	"DescribeInstanceTopology":      (*Cloud).describeNothing,
	"DescribeAvailabilityZones":     (*Cloud).describeZones,
	"DescribeSubnets":               (*Cloud).describeSubnets,
	"DescribeRouteTables":           (*Cloud).describeRouteTables,
	"DescribeSecurityGroups":        (*Cloud).describeGroups,
	"CreateSecurityGroup":           (*Cloud).createGroup,
	"DeleteSecurityGroup":           (*Cloud).deleteGroup,
	"AuthorizeSecurityGroupIngress": (*Cloud).authorize,
	"RevokeSecurityGroupIngress":    (*Cloud).revoke,
}

// done is the answer to most changes.
type done struct {
	Return bool `xml:"return"`
}

// describeNothing is the answer about instances of a type without a topology.
func (c *Cloud) describeNothing(query) (any, error) { return struct{}{}, nil }

type instanceState struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type groupName struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type networkInterface struct {
	Status  string `xml:"status"`
	Index   int    `xml:"attachment>deviceIndex"`
	Private string `xml:"privateIpAddress"`
	All     []struct {
		Private string `xml:"privateIpAddress"`
		Primary bool   `xml:"primary"`
	} `xml:"privateIpAddressesSet>item"`
}

type instance struct {
	ID          string             `xml:"instanceId"`
	State       instanceState      `xml:"instanceState"`
	Type        string             `xml:"instanceType"`
	Zone        string             `xml:"placement>availabilityZone"`
	PrivateName string             `xml:"privateDnsName"`
	PublicName  string             `xml:"dnsName"`
	PrivateIP   string             `xml:"privateIpAddress,omitempty"`
	PublicIP    string             `xml:"ipAddress,omitempty"`
	Network     string             `xml:"vpcId,omitempty"`
	Subnet      string             `xml:"subnetId,omitempty"`
	Groups      []groupName        `xml:"groupSet>item"`
	Interfaces  []networkInterface `xml:"networkInterfaceSet>item"`
	Tags        []tag              `xml:"tagSet>item"`
}

// describe returns an instance as EC2 does. A stopped one keeps its private address; a terminated
// one has lost its names and its network.
func (c *Cloud) describe(i Instance) instance {
	out := instance{ID: i.ID, State: instanceState{codes[i.State], string(i.State)}, Type: i.Type, Zone: Zone,
		Tags: tagsOf(map[string]string{clusterTag: "owned", "Name": i.Name})}
	if i.State == Terminated {
		return out
	}
	out.PrivateName, out.PrivateIP, out.Network, out.Subnet = i.Name, i.PrivateIP, Network, Subnet
	out.Groups = []groupName{{NodesGroup, c.groups[NodesGroup].name}}
	card := networkInterface{Status: "in-use", Private: i.PrivateIP}
	card.All = append(card.All, struct {
		Private string `xml:"privateIpAddress"`
		Primary bool   `xml:"primary"`
	}{i.PrivateIP, true})
	out.Interfaces = []networkInterface{card}
	if i.State == Running && i.PublicIP != "" {
		out.PublicIP, out.PublicName = i.PublicIP, i.PublicName()
	}
	return out
}

func (c *Cloud) describeInstances(q query) (any, error) {
	type reservation struct {
		ID        string     `xml:"reservationId"`
		Instances []instance `xml:"instancesSet>item"`
	}
	var out struct {
		Reservations []reservation `xml:"reservationSet>item"`
	}
	ids, filters := q.list("InstanceId"), q.filters()
	for _, id := range ids {
		if _, ok := c.instances[id]; !ok {
			return nil, fault{"InvalidInstanceID.NotFound", fmt.Sprintf("The instance ID '%s' does not exist", id)}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.instances)) {
		if len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		described := c.describe(c.instances[id])
		ok, err := passes(filters, func(name string) ([]string, bool) {
			switch name {
			case "private-dns-name":
				return []string{described.PrivateName}, true
			case "instance-state-name":
				return []string{described.State.Name}, true
			}
			return nil, false
		})
		if err != nil {
			return nil, err
		}
		if ok {
			out.Reservations = append(out.Reservations, reservation{"r-" + id, []instance{described}})
		}
	}
	return out, nil
}

func (c *Cloud) describeZones(query) (any, error) {
	type zone struct {
		Name   string `xml:"zoneName"`
		ID     string `xml:"zoneId"`
		Type   string `xml:"zoneType"`
		Region string `xml:"regionName"`
		State  string `xml:"zoneState"`
	}
	return struct {
		Zones []zone `xml:"availabilityZoneInfo>item"`
	}{[]zone{{Zone, ZoneID, "availability-zone", Region, "available"}}}, nil
}

func (c *Cloud) describeSubnets(q query) (any, error) {
	type subnet struct {
		ID      string `xml:"subnetId"`
		Network string `xml:"vpcId"`
		Zone    string `xml:"availabilityZone"`
		Range   string `xml:"cidrBlock"`
		State   string `xml:"state"`
		Tags    []tag  `xml:"tagSet>item"`
	}
	var out struct {
		Subnets []subnet `xml:"subnetSet>item"`
	}
	for _, id := range q.list("SubnetId") {
		if id != Subnet {
			return nil, fault{"InvalidSubnetID.NotFound", fmt.Sprintf("The subnet ID '%s' does not exist", id)}
		}
	}
	ok, err := passes(q.filters(), func(name string) ([]string, bool) {
		switch name {
		case "vpc-id":
			return []string{Network}, true
		case "subnet-id":
			return []string{Subnet}, true
		}
		return nil, false
	})
	if ok {
		out.Subnets = []subnet{{Subnet, Network, Zone, "10.0.0.0/8", "available",
			tagsOf(map[string]string{clusterTag: "shared", "kubernetes.io/role/elb": "1"})}}
	}
	return out, err
}

// describeRouteTables has the network's main table, with a route to the internet: all subnets are
// public.
func (c *Cloud) describeRouteTables(q query) (any, error) {
	type association struct {
		ID    string `xml:"routeTableAssociationId"`
		Table string `xml:"routeTableId"`
		Main  bool   `xml:"main"`
	}
	type route struct {
		To      string `xml:"destinationCidrBlock"`
		Gateway string `xml:"gatewayId"`
		State   string `xml:"state"`
	}
	type table struct {
		ID           string        `xml:"routeTableId"`
		Network      string        `xml:"vpcId"`
		Associations []association `xml:"associationSet>item"`
		Routes       []route       `xml:"routeSet>item"`
	}
	var out struct {
		Tables []table `xml:"routeTableSet>item"`
	}
	ok, err := passes(q.filters(), func(name string) ([]string, bool) { return []string{Network}, name == "vpc-id" })
	if ok {
		out.Tables = []table{{"rtb-0d0d0d0d", Network,
			[]association{{"rtbassoc-0e0e0e0e", "rtb-0d0d0d0d", true}},
			[]route{{"10.0.0.0/8", "local", "active"}, {"0.0.0.0/0", "igw-0f0f0f0f", "active"}}}}
	}
	return out, err
}

// group is a security group.
type group struct {
	id, name, description string
	tags                  map[string]string
	rules                 []rule
}

// rule admits one range or the members of one security group. Requests and answers may have several
// of each in a permission.
type rule struct {
	protocol, from, to string // from and to are empty for all ports
	cidr, group        string
}

// rules are those of the request's permissions.
func (q query) rules() ([]rule, error) {
	var all []rule
	err := q.each("IpPermissions", func(at string) error {
		r := rule{protocol: q.get(at + "IpProtocol"), from: q.get(at + "FromPort"), to: q.get(at + "ToPort")}
		before := len(all)
		_ = q.each(at+"IpRanges", func(at string) error { // it returns no error
			one := r
			one.cidr = q.get(at + "CidrIp")
			all = append(all, one)
			return nil
		})
		_ = q.each(at+"Groups", func(at string) error { // it returns no error
			one := r
			one.group = q.get(at + "GroupId")
			all = append(all, one)
			return nil
		})
		if len(all) == before {
			return notKnown("a permission without ranges of IPv4 and groups")
		}
		return nil
	})
	return all, err
}

func (c *Cloud) describeGroups(q query) (any, error) {
	type cidr struct {
		Range string `xml:"cidrIp"`
	}
	type pair struct {
		Group   string `xml:"groupId"`
		Account string `xml:"userId"`
	}
	type permission struct {
		Protocol string `xml:"ipProtocol"`
		From     string `xml:"fromPort,omitempty"`
		To       string `xml:"toPort,omitempty"`
		Ranges   []cidr `xml:"ipRanges>item"`
		Groups   []pair `xml:"groups>item"`
	}
	type described struct {
		ID          string       `xml:"groupId"`
		Name        string       `xml:"groupName"`
		Description string       `xml:"groupDescription"`
		Account     string       `xml:"ownerId"`
		Network     string       `xml:"vpcId"`
		Permissions []permission `xml:"ipPermissions>item"`
		Tags        []tag        `xml:"tagSet>item"`
	}
	var out struct {
		Groups []described `xml:"securityGroupInfo>item"`
	}
	ids, filters := q.list("GroupId"), q.filters()
	for _, id := range ids {
		if c.groups[id] == nil {
			return nil, noGroup(id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[id]
		if len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		ok, err := passes(filters, g.values)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		d := described{ID: g.id, Name: g.name, Description: g.description, Account: account, Network: Network,
			Tags: tagsOf(g.tags)}
		for _, r := range g.rules {
			p := permission{Protocol: r.protocol, From: r.from, To: r.to}
			if r.group != "" {
				p.Groups = []pair{{r.group, account}}
			} else {
				p.Ranges = []cidr{{r.cidr}}
			}
			d.Permissions = append(d.Permissions, p)
		}
		out.Groups = append(out.Groups, d)
	}
	return out, nil
}

// values are the group's values for a filter.
func (g *group) values(filter string) ([]string, bool) {
	switch filter {
	case "group-id":
		return []string{g.id}, true
	case "group-name":
		return []string{g.name}, true
	case "vpc-id":
		return []string{Network}, true
	case "ip-permission.group-id":
		var all []string
		for _, r := range g.rules {
			all = append(all, r.group)
		}
		return all, true
	}
	return nil, false
}

func noGroup(id string) error {
	return fault{"InvalidGroup.NotFound", fmt.Sprintf("The security group '%s' does not exist", id)}
}

func (c *Cloud) createGroup(q query) (any, error) {
	name := q.get("GroupName")
	for _, g := range c.groups {
		if g.name == name {
			return nil, fault{"InvalidGroup.Duplicate", fmt.Sprintf("The security group '%s' already exists", name)}
		}
	}
	if q.get("VpcId") != Network {
		return nil, fault{"InvalidVpcID.NotFound", fmt.Sprintf("The vpc ID '%s' does not exist", q.get("VpcId"))}
	}
	c.made++
	g := &group{id: fmt.Sprintf("sg-%08x", c.made), name: name, description: q.get("GroupDescription"),
		tags: q.tags("TagSpecification.1.Tag")}
	c.groups[g.id] = g
	return struct {
		Return bool   `xml:"return"`
		ID     string `xml:"groupId"`
		Tags   []tag  `xml:"tagSet>item"`
	}{true, g.id, tagsOf(g.tags)}, nil
}

func (c *Cloud) deleteGroup(q query) (any, error) {
	id := q.get("GroupId")
	if c.groups[id] == nil {
		return nil, noGroup(id)
	}
	used := id == NodesGroup
	for _, b := range c.balancers {
		used = used || slices.Contains(b.Groups, id)
	}
	for _, g := range c.groups {
		used = used || g.id != id && slices.ContainsFunc(g.rules, func(r rule) bool { return r.group == id })
	}
	if used {
		return nil, fault{"DependencyViolation", "resource " + id + " has a dependent object"}
	}
	delete(c.groups, id)
	return done{true}, nil
}

func (c *Cloud) authorize(q query) (any, error) {
	g := c.groups[q.get("GroupId")]
	if g == nil {
		return nil, noGroup(q.get("GroupId"))
	}
	rules, err := q.rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if slices.Contains(g.rules, r) {
			return nil, fault{"InvalidPermission.Duplicate", fmt.Sprintf("the rule %+v already exists", r)}
		}
		if r.group != "" && c.groups[r.group] == nil {
			return nil, noGroup(r.group)
		}
		if _, err := strconv.Atoi(r.from); err != nil && r.protocol != "-1" {
			return nil, fault{"InvalidParameterValue", fmt.Sprintf("Invalid value '%s' for portRange", r.from)}
		}
	}
	g.rules = append(g.rules, rules...)
	return done{true}, nil
}

func (c *Cloud) revoke(q query) (any, error) {
	g := c.groups[q.get("GroupId")]
	if g == nil {
		return nil, noGroup(q.get("GroupId"))
	}
	rules, err := q.rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if !slices.Contains(g.rules, r) {
			return nil, fault{"InvalidPermission.NotFound", fmt.Sprintf("the rule %+v does not exist", r)}
		}
	}
	g.rules = slices.DeleteFunc(g.rules, func(r rule) bool { return slices.Contains(rules, r) })
	return done{true}, nil
}
