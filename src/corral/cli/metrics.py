"""`corral metrics`: prints the metrics that Corral offers to Prometheus, the token for them, or a scrape configuration."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, client, find_endpoint, is_aws
from corral.cli.client.http import ConnectionPool, is_supported
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_line

CONFIG = """\
scrape_configs:
  - job_name: corral
    scrape_interval: 5s
    authorization:
      credentials: {token}
    static_configs:
      - targets: ["{target}"]
    metric_relabel_configs:
      - source_labels: [model_name]
        target_label: modelName  # as dcgm-exporter calls it
"""
READ_S = 30.0


@click.command(short_help="Print the metrics for Prometheus.")
@data_option
@click.option("--token", is_flag=True, help="Print the token with which Prometheus reads the metrics.")
@click.option("--config", is_flag=True, help="Print a configuration for Prometheus. It contains the token.")
def metrics(data: DataFolder, token: bool, config: bool) -> None:
    """Print the metrics of the GPUs and of Corral itself, as Prometheus reads them from /metrics.

    The token only allows reading this page. `corral revoke --all` replaces it.
    """
    if token and config:
        raise click.UsageError("use either --token or --config.")
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral metrics` reads the metrics of a Corral server. On AWS, use `aws cloudwatch get-metric-data`.")
    secret = call(endpoint, "GetMetricsToken")[0]["token"]
    url = urlsplit(str(client(endpoint, "ecs").meta.endpoint_url))
    if token:
        print_line(secret)
    elif config:
        _print(CONFIG.format(token=secret, target=url.netloc))
    else:
        status, text = _read(f"{url.scheme}://{url.netloc}", {"Authorization": f"Bearer {secret}"})
        if status != 200:
            raise CliError(f"/metrics answered {status}: {text.strip()}")
        _print(text)


def _read(url: str, headers: dict[str, str]) -> tuple[int, str]:
    if is_supported(url):
        found = ConnectionPool(url, connect_s=READ_S, read_s=READ_S).send("GET", "/metrics", headers)
        return found.status, found.body.decode("utf-8", "replace")
    from botocore.awsrequest import AWSRequest
    from botocore.httpsession import URLLib3Session

    response = URLLib3Session(proxies={}, timeout=READ_S).send(AWSRequest("GET", f"{url}/metrics", headers).prepare())
    return response.status_code, response.text


def _print(text: str) -> None:
    for line in text.splitlines():
        print_line(line)
