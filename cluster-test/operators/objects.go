package main

import (
	"fmt"

	"github.com/barque/barque/cluster-test/images"
)

// namespaceNamed is the manifest of a namespace.
func namespaceNamed(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
}

// webServers is a Deployment of nginx. Its pods have its name as their label app.
func webServers(namespace, name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: nginx, image: "%[4]s", ports: [{containerPort: 80}]}]}
`, namespace, name, replicas, images.Nginx)
}

// webPage is in nginx' page.
const webPage = "Welcome to nginx!"

// rounds are a table with a row of each round.
const (
	makeRounds = "create table if not exists rounds (name text primary key)"
	listRounds = "select name from rounds order by name"
)

// row inserts the row of a round.
func (r round) row() string {
	return fmt.Sprintf("insert into rounds values ('%s') on conflict do nothing", r)
}
