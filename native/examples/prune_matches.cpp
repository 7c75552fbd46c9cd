// Matches two photos with OpenCV's SIFT and prunes the matches.
//
//     prune_matches ananet-small.safetensors a.jpg b.jpg
#include <ananet.hpp>

#include <iostream>
#include <opencv2/features2d.hpp>
#include <opencv2/imgcodecs.hpp>

/// The matches to keep, of the two nearest neighbours of every keypoint in the second photo.
std::vector<cv::DMatch> prune(const ananet::Pruner& pruner, const std::vector<std::vector<cv::DMatch>>& neighbours,
                              const std::vector<cv::KeyPoint>& keypoints0, const std::vector<cv::KeyPoint>& keypoints1,
                              cv::Size size0, cv::Size size1) {
    ananet::Matches matches;
    matches.image_size0 = ananet::Size{1.0 * size0.width, 1.0 * size0.height};
    matches.image_size1 = ananet::Size{1.0 * size1.width, 1.0 * size1.height};
    for (const auto& pair : neighbours) {
        const cv::KeyPoint &first = keypoints0.at(pair.at(0).queryIdx), &second = keypoints1.at(pair.at(0).trainIdx);
        matches.points0.push_back({first.pt.x, first.pt.y});
        matches.points1.push_back({second.pt.x, second.pt.y});
        matches.ratio.push_back(pair.at(1).distance > 0 ? pair.at(0).distance / pair.at(1).distance : 1);
        matches.keypoint_sizes0.push_back(first.size);
        matches.keypoint_sizes1.push_back(second.size);
        // OpenCV has degrees.
        matches.angles0.push_back(first.angle * static_cast<float>(CV_PI / 180));
        matches.angles1.push_back(second.angle * static_cast<float>(CV_PI / 180));
    }
    const ananet::Pruned pruned = pruner(matches);
    std::vector<cv::DMatch> kept;
    for (const std::size_t i : pruned.indices()) kept.push_back(neighbours[i][0]);
    return kept;
}

int main(int count, char** words) try {
    if (count != 4) {
        std::cerr << "expected WEIGHTS PHOTO PHOTO\n";
        return 2;
    }
    const auto pruner = ananet::Pruner::from_file(words[1]);
    const auto sift = cv::SIFT::create(2000);
    cv::Mat photos[2], descriptors[2];
    std::vector<cv::KeyPoint> keypoints[2];
    for (int i : {0, 1}) {
        photos[i] = cv::imread(words[2 + i], cv::IMREAD_GRAYSCALE);
        if (photos[i].empty()) throw ananet::InputError(std::string("no photo ") + words[2 + i]);
        sift->detectAndCompute(photos[i], {}, keypoints[i], descriptors[i]);
    }
    std::vector<std::vector<cv::DMatch>> neighbours;
    if (keypoints[1].size() >= 2) cv::BFMatcher().knnMatch(descriptors[0], descriptors[1], neighbours, 2);
    const auto kept = prune(pruner, neighbours, keypoints[0], keypoints[1], photos[0].size(), photos[1].size());
    std::cout << kept.size() << " of " << neighbours.size() << " matches kept\n";
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
