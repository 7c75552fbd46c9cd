from html.parser import HTMLParser

from ananet.web.openapi import describe


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href", "action")]


def test_pages_need_no_other_host(client):
    for path in ("/", "/docs"):
        links = Links()
        answer = client.get(path)
        links.feed(answer.text)
        assert answer.status_code == 200 and links.found
        for link in links.found:
            assert link == "data:," or ("//" not in link and client.get(link).status_code == 200)
    for name in ("page.js", "backend.js", "downloads.js", "style.css"):
        assert "://" not in client.get(f"/{name}").text
    assert all(path in client.get("/docs").text for path in ("/v1/prune", "/v1/match", "/metrics"))


def test_openapi_describes_every_route(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/v1/prune", "/v1/match", "/v1/pruners", "/healthz", "/metrics"}
    body = paths["/v1/match"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert body["required"] == ["photo0", "photo1"] and "focal" in body["properties"]


def test_every_part_of_an_answer_is_described(client, photos):
    schema = client.get("/openapi.json").json()["paths"]["/v1/match"]["post"]["responses"]["200"]
    files = {"photo0": ("a.jpg", photos["left"]), "photo1": ("b.jpg", photos["right"])}
    answer = client.post("/v1/match", files=files, data={"pruner": "ratio"}).json()
    assert set(schema["content"]["application/json"]["schema"]["properties"]) == set(answer)


def test_signs_of_html_are_escaped():
    info = {"title": "<b>", "version": "1", "summary": "a & b"}
    page = describe({"info": info, "paths": {"/<x>": {"get": {"summary": "<i>", "responses": {}}}}})
    assert "<b>" not in page and "<i>" not in page and "&lt;x&gt;" in page and "a &amp; b" in page
