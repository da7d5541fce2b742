// Package evidence collects the evidence for clusterstatus/cis from a running cluster: the reports
// of servers, the configurations of kubelets, the answers of ports to a stranger, and the cluster's
// objects.
//
// It changes nothing. Reviews and dry runs are requests that the API does not store. Each dry run
// is a create, so an audit log and admission webhooks see it.
package evidence
